"""The compiler: attention, or a gated RNN, into every recurrent architecture of the paper, verified.

A target is one file here, which registers itself (`register_target`), and its name in the line below.
"""

from underhood.construct import gated, gated_deltanet, gla, gru, lru, lstm, mamba2, mesanet, mlstm, rwkv7

__all__ = ["gated", "gated_deltanet", "gla", "gru", "lru", "lstm", "mamba2", "mesanet", "mlstm", "rwkv7"]
