"""Attention → a matrix memory in one layer, gated RNN → two, through layers that were not made for it.

A matrix memory is attention, S_t = γ S_{t-1} + k vᵀ, o = Sᵀ q; what stands in the way are the activations and the norms
around it. All of them are linear for small signals, and scales are free in floating point:

    SiLU(x) = x/2 (1 + x/2 − …)                  x/√(Σ x² + ε) = x/√ε (1 − Σ x²/2ε + …),  likewise RMS and layer norm

At |x| ≤ u/8, u the unit of rounding, nothing but rounding is left. So every head needs the d_k·d_v numbers of its own memory
and no more; a norm that subtracts the mean takes one column of values, −Σ v.

A gated RNN has h = λ h + (a·x)(b·x) in the first layer, memories of size 1 with the constant 1 as their query, and
(A h)(B h) in the second, as memories that forget at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.subspaces import factor, row_space
from underhood.attention.linear import LinearAttention
from underhood.cells import GatedRNN, Linear, Stack
from underhood.cells.linear import dense
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.forms import heads_of
from underhood.construct.lowered import Lowered
from underhood.construct.targets import Way

ONE = 64.0  # SiLU and softplus hand it on unchanged, in float32 and float64
CLOSED = -2000.0  # exp and σ are 0 there
CONSTANTS = 24  # roundings of the constants that the readout makes up for: 1/√ε, a decay, a gate

NO_PRODUCT_OF_STATES = "queries are made from the input alone, so two states cannot be multiplied"

REACHED = {1: 1e-12}  # a limit, and yet within rounding


@dataclasses.dataclass(frozen=True)
class Heads:
    """o = Σ_s γ^{t−s} v_s (k_s·q_t) for each head, and y = out·o; v, k, q are rows over x̃, whose last entry is 1."""

    values: Float[np.ndarray, "h v inputs"]
    keys: Float[np.ndarray, "h k inputs"]
    queries: Float[np.ndarray, "h k inputs"]
    decay: Float[np.ndarray, " h"]
    out: Float[np.ndarray, "d_o hv"]
    value_bounds: Float[np.ndarray, "h v"]
    key_bounds: Float[np.ndarray, "h k"]
    query_bounds: Float[np.ndarray, "h k"]
    steps: Float[np.ndarray, " h"]  # how many inputs a memory adds up
    input_bounds: Float[np.ndarray, " inputs"]  # of x̃

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Heads, d_k, d_v, inputs."""
        return len(self.values), self.keys.shape[1], *self.values.shape[1:]

    @property
    def score_bounds(self) -> Float[np.ndarray, " h"]:
        """Σ_s |k_s·q_t|."""
        return self.steps * np.sum(self.key_bounds * self.query_bounds, axis=1)

    @property
    def read_bounds(self) -> Float[np.ndarray, "h v"]:
        """|o|."""
        return self.score_bounds[:, None] * self.value_bounds

    @property
    def output_bounds(self) -> Float[np.ndarray, " d_o"]:
        return np.abs(self.out) @ self.read_bounds.ravel()

    @property
    def one(self) -> Float[np.ndarray, " inputs"]:
        """The row that reads the constant."""
        return np.eye(self.keys.shape[2])[-1]

    def column_scales(self, scales: Float[np.ndarray, " h"]) -> Float[np.ndarray, "d_o hv"]:
        """`out` where each head's values come times `scales`."""
        return self.out / np.repeat(scales, self.values.shape[1])

    def rounding(self, envelope: Envelope) -> float:
        """The projections, the sum over time, the score and the sum over heads, against the exact result."""
        heads, d_key, d_value, inputs = self.sizes
        summing = envelope.worst.summing if np.any(self.decay > 0) else 0.0
        return summing + 3 * envelope.dot(inputs) + envelope.dot(d_key) + envelope.dot(heads * d_value + CONSTANTS)


Make = Callable[[Heads, int, Envelope], tuple[Any, float]]
"""(heads, width, envelope) → a layer from `width` numbers, x̃ first, to as many, y first; and what its limits leave."""


def small(bounds: Float[np.ndarray, "h n"], size: float) -> Float[np.ndarray, " h"]:
    """Powers of two that bring the signals of each head down to `size`."""
    return power_of_two(size / positive(np.max(bounds, axis=1)))


def linear_size(envelope: Envelope) -> float:
    """At which SiLU is linear: its relative error is half of this."""
    return envelope.roundoff / 8


def norm_size(envelope: Envelope, eps: float) -> float:
    """At which a norm divides by √ε: its relative error is at most half of the square of this over ε."""
    return float(np.sqrt(eps * envelope.roundoff / 4))


def unit_size(envelope: Envelope, heads: Heads, eps: float = 1e-6) -> float:
    """At which keys of length 1 are as good as keys: SiLU and the norm are linear and β k kᵀ is nothing up to T."""
    together = float(np.max(heads.steps)) * heads.keys.shape[1]
    return min(linear_size(envelope), float(np.sqrt(envelope.roundoff * eps / (2 * together))))


def square(rows: Float[np.ndarray, "n inputs"], width: int) -> Float[np.ndarray, "n width"]:
    """Rows over x̃ as rows over the layer's input."""
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def tall(out: Float[np.ndarray, "d_o n"], width: int) -> Float[np.ndarray, "width n"]:
    """y as the first of the layer's outputs."""
    return np.pad(out, ((0, width - len(out)), (0, 0)))


def centred(heads: Heads) -> Heads:
    """With −Σ v as one more value: the mean that a norm subtracts is then 0."""
    count, _, d_value, _ = heads.sizes
    columns = heads.out.reshape(len(heads.out), count, d_value)
    return dataclasses.replace(
        heads,
        values=np.concatenate([heads.values, -heads.values.sum(axis=1, keepdims=True)], axis=1),
        out=np.pad(columns, ((0, 0), (0, 0), (0, 1))).reshape(len(heads.out), -1),
        value_bounds=np.concatenate([heads.value_bounds, heads.value_bounds.sum(axis=1, keepdims=True)], axis=1),
    )


def attention_heads(source: LinearAttention, envelope: Envelope) -> Heads:
    """A head for each of the source's that is not zero, cut down to the ranks of W_V and of W_KᵀW_Q."""
    cut = [_cut(*head) for head in heads_of(source)]
    cut = [head for head in cut if len(head[0]) * len(head[1])] or [_silent(source)]
    d_value, d_key = max(len(head[0]) for head in cut), max(len(head[1]) for head in cut)

    def stacked(index: int, size: int) -> np.ndarray:
        return np.stack([np.pad(head[index], ((0, size - len(head[index])), (0, 1))) for head in cut])

    values, keys, queries = stacked(0, d_value), stacked(1, d_key), stacked(2, d_key)
    decay = np.array([head[3] for head in cut])
    out = np.concatenate([np.pad(head[4], ((0, 0), (0, d_value - head[4].shape[1]))) for head in cut], axis=1)

    def bounds(rows: np.ndarray) -> np.ndarray:
        return envelope.affine(rows.reshape(-1, rows.shape[2])).reshape(rows.shape[:2])

    limits = map(bounds, (values, keys, queries))
    return Heads(values, keys, queries, decay, out, *limits, envelope.steps(decay), _input_bounds(source.d, envelope))


def _input_bounds(d: int, envelope: Envelope) -> np.ndarray:
    return np.append(np.full(d, envelope.input_bound), 1.0)


def _cut(
    w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray]:
    """Values, keys, queries, decay and the values' columns in the output; full ranks stay as they are."""
    rows = row_space(w_value)
    keys, queries = factor(w_key.T @ w_query)
    values, out = (w_value, np.eye(len(w_value))) if len(rows) >= len(w_value) else (rows, w_value @ rows.T)
    return (values, w_key, w_query, decay, out) if len(keys) >= len(w_key) else (values, keys, queries, decay, out)


def _silent(source: LinearAttention) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray]:
    return *np.zeros((3, 1, source.d)), 1.0, np.zeros((source.d_out, 1))


def attention_through(make: Make) -> Way:
    """Attention in one layer."""

    def lower(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
        heads = attention_heads(source, envelope)
        width = max(source.d + 1, source.d_out)
        layer, left = make(heads, width, envelope)
        model = _stack((layer,), source.d, source.d_out)
        return Lowered(model, left + heads.rounding(envelope), heads.output_bounds)

    return lower


def gated_through(make: Make) -> Way:
    """A gated RNN of Eq. 2 in two layers."""

    def lower(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
        first, second = state_heads(source, envelope), product_heads(source, envelope)
        width = max(source.d + 1, source.hidden + 1, source.d_out)
        (below, left), (above, left_above) = (make(heads, width, envelope) for heads in (first, second))
        model = _stack((below, above), source.d, source.d_out)
        relative = 2 * (left + first.rounding(envelope)) + left_above + second.rounding(envelope)
        return Lowered(model, relative, second.output_bounds)

    return lower


def state_heads(source: GatedRNN, envelope: Envelope) -> Heads:
    """(h, 1): a memory of size 1 for each neuron and one for the constant, which forgets at once."""
    one = np.eye(source.d + 1)[-1:]
    w_m, w_x = (np.concatenate([_float64(w), one]) for w in (source.input_gating.w_m, source.input_gating.w_x))
    decay = np.append(np.asarray(source.lambda_, np.float64), 0.0)
    return _single(w_m, w_x, decay, np.eye(len(w_m)), _input_bounds(source.d, envelope), envelope)


def product_heads(source: GatedRNN, envelope: Envelope) -> Heads:
    """(A h) ⊙ (B h): memories that forget at once, over (h, 1)."""
    below = state_heads(source, envelope)
    rows = [np.pad(_float64(w), ((0, 0), (0, 1))) for w in (source.output_gating.w_m, source.output_gating.w_x)]
    return _single(*rows, np.zeros(len(rows[0])), _float64(source.readout), below.output_bounds, envelope)


def _single(
    keys: np.ndarray,
    values: np.ndarray,
    decay: np.ndarray,
    out: np.ndarray,
    input_bounds: np.ndarray,
    envelope: Envelope,
) -> Heads:
    """Memories of size 1, asked with the constant."""
    one = np.tile(np.eye(keys.shape[1])[-1], (len(keys), 1, 1))
    bounds = [(np.abs(rows) @ input_bounds)[:, None] for rows in (values, keys)]
    steps = envelope.steps(decay)
    return Heads(values[:, None], keys[:, None], one, decay, out, *bounds, np.ones((len(keys), 1)), steps, input_bounds)


def _stack(layers: tuple[Any, ...], d: int, d_out: int) -> Stack:
    """Embedding (x, 1, 0 …), the layers, and the first outputs."""
    width = layers[0].d
    return Stack(Linear(np.eye(width, d), np.eye(width)[d]), layers, Linear(np.eye(d_out, width), np.zeros(d_out)))


def _float64(matrix: object) -> np.ndarray:
    return dense(matrix).astype(np.float64)
