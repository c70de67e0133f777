"""readout(cell(embedding(x))): neurons permuted, signs flipped, signals scaled by powers of two.

Networks compiled to LSTM, GRU and LRU work by differences that nearly cancel: a mixing that rounds would show
in their output. Powers of two and signs round nothing; a permutation only changes the order of sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.cells.gated_rnn import Gating
from underhood.cells.gru import CANDIDATE as GRU_CANDIDATE
from underhood.cells.gru import GRU
from underhood.cells.linear import Linear, dense
from underhood.cells.lru import LRU
from underhood.cells.lstm import CANDIDATE as LSTM_CANDIDATE
from underhood.cells.lstm import LSTM
from underhood.cells.stack import Stack
from underhood.errors import UnderhoodError
from underhood.identify.forms import Array


def disguise_stack(model: Stack, random: np.random.Generator) -> Stack:
    """A stack with other weights and the same function."""
    order, scale = _signal(random, len(np.asarray(model.embedding.bias)))
    embedding = Linear(
        np.asarray(model.embedding.weight)[order] * scale[:, None].astype(model.dtype),
        np.asarray(model.embedding.bias)[order] * scale.astype(model.dtype),
    )
    cells = []
    for cell in model.cells:
        cell, order, scale = _disguise_cell(cell, order, scale, random)
        cells.append(cell)
    readout = Linear(_reading(model.readout.weight, order, scale), np.asarray(model.readout.bias))
    return Stack(embedding, tuple(cells), readout)


def _signal(random: np.random.Generator, size: int) -> tuple[Array, Array]:
    """A permutation of a signal, and factors of either sign between ½ and 2."""
    return random.permutation(size), random.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], size)


def _reading(weight: Any, order: Array, scale: Array) -> Array:
    """The matrix that reads the changed signal as `weight` read the old one."""
    array = np.asarray(dense(weight))
    return (array[..., order] / scale).astype(array.dtype)


def _disguise_cell(cell: Any, order: Array, scale: Array, random: np.random.Generator) -> tuple[Any, Array, Array]:
    """The cell on a changed input; and how its output changed."""
    if isinstance(cell, LSTM | GRU):
        return _gated_cell(cell, order, scale, random)
    if isinstance(cell, LRU):
        return _lru_cell(cell, order, scale, random)
    raise UnderhoodError("disguise knows stacks of LSTM, GRU and LRU cells", getattr(cell, "kind", type(cell).__name__))


def _gated_cell(cell: Any, order: Array, scale: Array, random: np.random.Generator) -> tuple[Any, Array, Array]:
    """Neurons permuted; some with the sign of their candidate, and so of h, flipped: tanh is odd."""
    candidate = LSTM_CANDIDATE if isinstance(cell, LSTM) else GRU_CANDIDATE
    neurons = random.permutation(cell.hidden)
    sign = random.choice([-1.0, 1.0], cell.hidden)
    u, b = np.asarray(cell.u)[:, neurons], np.asarray(cell.b)[:, neurons].copy()
    u = _reading(u, order, scale)
    v = None if cell.v is None else _reading(np.asarray(cell.v)[:, neurons], neurons, sign)
    for array in (u, b) if v is None else (u, v, b):
        array[candidate] *= np.reshape(sign, (-1, *[1] * (array.ndim - 2))).astype(array.dtype)
    if isinstance(cell, GRU) and cell.b_hn is not None:
        b_hn = np.asarray(cell.b_hn)[neurons] * sign.astype(b.dtype)
        return GRU(u, v, b, b_hn, cell.reset), neurons, sign
    return type(cell)(u, v, b), neurons, sign


def _lru_cell(cell: LRU, order: Array, scale: Array, random: np.random.Generator) -> tuple[LRU, Array, Array]:
    """Neurons permuted and scaled; outputs permuted, some with their sign flipped in the linear branch."""
    neurons, size = _signal(random, cell.hidden)
    outputs, sign = random.permutation(cell.d_out), random.choice([-1.0, 1.0], cell.d_out)
    reads_input = cell.input_gating is None
    gating = cell.input_gating
    if gating is not None:
        gating = Gating(_reading(gating.w_m, order, scale), _reading(gating.w_x, order, scale))

    def of_input(weight: Any) -> Array:
        return _reading(weight, order, scale) if reads_input else np.asarray(weight)

    def factor(values: Array) -> Array:
        return values.astype(cell.dtype)

    w_m = np.asarray(dense(cell.output_gating.w_m))
    w_m = _reading(w_m, order, scale) if cell.form == "in-skip" else w_m
    w_x = np.asarray(dense(cell.output_gating.w_x))[outputs] * factor(sign)[:, None]
    changed = {
        **{name: np.asarray(getattr(cell, name))[neurons] for name in ("nu_log", "theta_log", "gamma_log")},
        **{name: of_input(getattr(cell, name))[neurons] * factor(size)[:, None] for name in ("b_real", "b_imag")},
        **{name: _reading(getattr(cell, name), neurons, size) for name in ("c_real", "c_imag")},
        "skip": of_input(cell.skip),
        "output_gating": Gating(w_m[outputs], w_x),
        "input_gating": gating,
        "form": cell.form,
    }
    return LRU(**changed), outputs, sign
