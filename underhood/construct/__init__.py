"""The compiler: attention, or a gated RNN, into every recurrent architecture of the paper, verified.

A target is one file here, which registers itself (`register_target`), and its name in the line below.
"""

from underhood.construct import gated, gru, lru, lstm

__all__ = ["gated", "gru", "lru", "lstm"]
