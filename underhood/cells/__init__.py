"""The recurrent networks of the paper, each with `initial_state`, `step`, `scan` and the call.

A new architecture is one file here that registers itself, its line below, and its test with the equations in NumPy
(docs/extending.md); everything else finds it in the registry.
"""

from underhood.cells.convolution import Convolution
from underhood.cells.gated_rnn import DenseGatedRNN, GatedRNN, Gating
from underhood.cells.griffin import BlockGate, Griffin
from underhood.cells.gru import GRU
from underhood.cells.linear import Linear, SparseMatrix
from underhood.cells.lru import LRU
from underhood.cells.lstm import LSTM
from underhood.cells.mamba import Mamba
from underhood.cells.mingru import MinGRU
from underhood.cells.stack import Stack
from underhood.model import ARCHITECTURES

__all__ = [
    "ARCHITECTURES",
    "GRU",
    "LRU",
    "LSTM",
    "BlockGate",
    "Convolution",
    "DenseGatedRNN",
    "GatedRNN",
    "Gating",
    "Griffin",
    "Linear",
    "Mamba",
    "MinGRU",
    "SparseMatrix",
    "Stack",
]
