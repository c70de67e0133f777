"""The compiler: attention, or a gated RNN, into the recurrent architectures of the paper and of today, verified.

A target is one file here, which registers itself (`register_target`), and its name in the line below.
"""

from underhood.construct import (
    gated,
    gated_deltanet,
    gla,
    griffin,
    gru,
    lru,
    lstm,
    mamba,
    mamba2,
    mesanet,
    mingru,
    mlstm,
    rwkv7,
)

__all__ = [
    "gated",
    "gated_deltanet",
    "gla",
    "griffin",
    "gru",
    "lru",
    "lstm",
    "mamba",
    "mamba2",
    "mesanet",
    "mingru",
    "mlstm",
    "rwkv7",
]
