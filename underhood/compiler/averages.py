"""Averages Σ_s κ(q_t, k_s) v_s / Σ_s κ(q_t, k_s) with a polynomial kernel, as gated layers and one memory that divides.

    stages      all monomials up to degree n are products of two up to degree ⌈n/2⌉: ⌈log₂ n⌉ products in a row, two in
                each gated layer of Eq. 2 with λ = 0, one in each of its gatings
    memory      S = Σ φ(k) (v, 1)ᵀ asked with φ(q): the sums above and below the line
    division    mLSTM's own normaliser, max(|n·q|, 1), where n·q is scaled above 1; or the norm behind any other memory,
                s N/√(mean(s² N², D²) + ε) → N/D for s → 0, at s² below the unit of rounding

So the network equals its source in exact arithmetic but for the limit s → 0. As to rounding: with an error of X in a
kernel of at least κ₀ > 0, averages of numbers within ±V move by 2 V X/(κ₀ − X) at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.architectures.stack.cell import Stack
from underhood.attention.features import FeatureAttention, PolynomialFeatures
from underhood.compiler.envelope import Envelope
from underhood.compiler.kernels import Kernel, average_error
from underhood.core.registry import Registry
from underhood.layers.linear import Block, Linear, SparseMatrix

OUTPUT_ROUNDINGS = 64  # of a division, a norm, a gate and a readout, with twice what they take
SIGNAL_ROUNDINGS = (
    64  # of a signal on its way into the memory: projections, an activation that is linear there, weights
)
SUM_ROUNDINGS = 96  # of a sum over time and features, beyond its terms: chunks, decays of 1, activations

Item = tuple[Any, ...]
ONE: Item = ("1",)


@dataclasses.dataclass(frozen=True)
class Averages:
    """Heads that average: kernels, values as rows over (x, 1), and a constant that is added to the sum of heads."""

    kernels: tuple[Kernel, ...]
    values: Float[np.ndarray, "h d_v inputs"]
    bias: Float[np.ndarray, " d_v"]

    @property
    def d(self) -> int:
        return self.values.shape[2] - 1

    @property
    def features(self) -> int:
        """The most monomials of any head."""
        return max(kernel.features for kernel in self.kernels)

    @property
    def degree(self) -> int:
        return max(kernel.degree for kernel in self.kernels)

    def value_bounds(self, input_bound: float) -> Float[np.ndarray, "h d_v"]:
        """max |v|."""
        return input_bound * np.abs(self.values[:, :, :-1]).sum(axis=2) + np.abs(self.values[:, :, -1])

    def errors(self, input_bound: float) -> Float[np.ndarray, " d_v"]:
        """How far these averages may be from those with e^{q·k}."""
        each = np.array([average_error(kernel.error) for kernel in self.kernels])
        return each @ self.value_bounds(input_bound)

    @property
    def attention(self) -> FeatureAttention:
        """The same as a model: heads with fewer monomials than others have some of weight 0."""
        rank = max(kernel.keys.shape[0] for kernel in self.kernels)
        powers = np.zeros((len(self.kernels), self.features, rank))
        weights = np.zeros(powers.shape[:2])
        keys, queries = np.zeros((2, len(self.kernels), rank, self.d + 1))
        for head, kernel in enumerate(self.kernels):
            powers[head, : kernel.features, : len(kernel.keys)] = kernel.powers
            weights[head, : kernel.features] = kernel.weights
            keys[head, : len(kernel.keys)], queries[head, : len(kernel.keys)] = kernel.keys, kernel.queries
        return FeatureAttention(
            self.values[:, :, :-1],
            keys[:, :, :-1],
            queries[:, :, :-1],
            PolynomialFeatures(powers, weights, self.degree),
            bias_query=queries[:, :, -1] if np.any(queries[:, :, -1]) else None,
            bias=self.bias if np.any(self.bias) else None,
        )


class Places(NamedTuple):
    """Where the signals of one head stand among those that the memory's layer reads."""

    keys: np.ndarray
    queries: np.ndarray
    values: np.ndarray
    weights: Float[np.ndarray, " m"]


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a dividing layer is made of: signals within ±1, among them the constant 1, and where they stand."""

    heads: tuple[Places, ...]
    one: int
    width: int
    least: Float[np.ndarray, " h"]
    """The kernels are at least this."""
    out: Float[np.ndarray, "d_v h_dv"]
    """y from all heads' averages."""

    def rows(self, places: np.ndarray, scale: Any = 1.0) -> Float[np.ndarray, "n width"]:
        """Signals that stand at these places, each times its scale."""
        rows = np.zeros((len(places), self.width))
        rows[np.arange(len(places)), places] = scale
        return rows

    def padded(self, matrix: np.ndarray) -> np.ndarray:
        """As many outputs as inputs, y first."""
        return np.pad(matrix, ((0, self.width - len(matrix)), (0, 0)))


class Divider(NamedTuple):
    """How a layer divides."""

    make: Callable[[Reading, Envelope], Any]
    """A layer from `width` numbers to as many, y first."""
    numbers: Callable[[int, int, int], int]
    """(heads, features, d_v) → numbers of its state."""


class Stage(NamedTuple):
    """Signals, each a product of two of the stage before: their places there."""

    items: list[Item]
    first: np.ndarray
    other: np.ndarray


DIVIDERS: Registry[Divider] = Registry("target that divides", "underhood.architectures.*.lowering_average")


def register_average(name: str, divider: Divider) -> None:
    """A target for normalised attention."""
    DIVIDERS.register(name)(divider)


@dataclasses.dataclass(frozen=True)
class _Signal:
    """|meant| ≤ size ≤ 1, |computed − meant| ≤ error."""

    size: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]

    @property
    def reach(self) -> Float[np.ndarray, " n"]:
        """|computed|."""
        return self.size + self.error

    def __getitem__(self, which: Any) -> _Signal:
        return _Signal(self.size[which], self.error[which])

    def handed_on(self, envelope: Envelope, roundings: int = 8) -> _Signal:
        """Through weights of 1 among zeros, or scaled by powers of two; below the smallest number it is zero."""
        least = float(np.finfo(envelope.dtype).tiny)
        return _Signal(self.size, self.error + gamma(roundings, envelope) * self.reach + roundings * least)


def gamma(roundings: int, envelope: Envelope) -> float:
    """n u/(1 − n u): what n roundings can do to a product or a sum, in whatever order it is added up."""
    share = roundings * envelope.roundoff
    return share / (1 - share) if share < 1 else float("inf")


def _linear(forms: Float[np.ndarray, "n inputs"], envelope: Envelope) -> _Signal:
    """Rows over (x, 1), whose weights and inputs a lower precision rounds."""
    sizes = envelope.affine(np.abs(forms))
    return _Signal(np.minimum(sizes, 1.0), gamma(forms.shape[1] + 4, envelope) * sizes)


def _product(first: _Signal, other: _Signal, envelope: Envelope) -> _Signal:
    error = first.size * other.error + first.error * other.reach
    return _Signal(first.size * other.size, error + gamma(1, envelope) * first.reach * other.reach)


class Lowered(NamedTuple):
    """A network, in float64, and how far its outputs may be from those of normalised attention."""

    model: Any
    error_bound: float
    relative_bound: float


def lower_average(divider: Divider, source: Averages, envelope: Envelope) -> Lowered:
    """Gated layers for the monomials, and the layer that divides."""
    bounds = source.value_bounds(envelope.input_bound)
    scales = np.exp2(np.ceil(np.log2(np.where(bounds > 0, bounds, 1.0))))
    stages = _stages(_signals(source))
    reading = _reading(source, {item: place for place, item in enumerate(stages[-1].items)}, scales)
    forms = np.stack([_form(source, item, scales) for item in stages[0].items])
    layer = divider.make(reading, envelope)
    steps = range(0, len(stages) - 1, 2)
    cells = [_gated(stages[at + 1], stages[at + 2], len(stages[at].items)) for at in steps]
    readout = Linear(np.eye(len(source.bias), layer.d_out), source.bias)
    model = Stack(Linear(forms[:, :-1], forms[:, -1]), (*cells, layer), readout)
    most = np.sum(bounds, axis=0) + np.abs(source.bias)
    rounding = np.sum(_rounding(source, reading, stages, forms, envelope) * scales, axis=0)
    rounding = rounding + gamma(OUTPUT_ROUNDINGS + bounds.size, envelope) * most
    bound = float(np.max(source.errors(envelope.input_bound) + rounding))
    return Lowered(model, bound, bound / (float(np.max(most)) or 1.0))


def _signals(source: Averages) -> list[Item]:
    """What the memory's layer reads: the constant, values, and monomials of keys and queries."""
    items: list[Item] = [ONE]
    for head, kernel in enumerate(source.kernels):
        items += [("v", head, index) for index in range(source.values.shape[1])]
        alphas = [tuple(alpha) for alpha in kernel.powers.tolist() if any(alpha)]
        items += [(sort, head, alpha) for sort in "kq" for alpha in alphas]
    return items


def _stages(items: list[Item]) -> list[Stage]:
    """From linear forms to `items`, an even number of products later."""
    nowhere = np.zeros(0, int)
    above, stages = items, []
    while any(_degree(item) > 1 for item in above) or len(stages) % 2:
        pairs = [_halves(item) for item in above]
        below = list(dict.fromkeys(item for pair in [(ONE, ONE), *pairs] for item in pair))
        place = {item: index for index, item in enumerate(below)}
        first, other = (np.array([place[pair[side]] for pair in pairs]) for side in (0, 1))
        stages.append(Stage(above, first, other))
        above = below
    return [Stage(above, nowhere, nowhere), *reversed(stages)]


def _degree(item: Item) -> int:
    return sum(item[2]) if item[0] in ("k", "q") else 0


def _halves(item: Item) -> tuple[Item, Item]:
    """A monomial as a product of two of half the degree; what has no degree to halve, times 1."""
    if _degree(item) < 2:
        return item, ONE
    sort, head, alpha = item
    left, half = (_degree(item) + 1) // 2, []
    for power in alpha:
        half.append(min(power, left))
        left -= half[-1]
    rest = tuple(power - taken for power, taken in zip(alpha, half, strict=True))
    return (sort, head, tuple(half)), (sort, head, rest)


def _form(source: Averages, item: Item, scales: Float[np.ndarray, "h d_v"]) -> Float[np.ndarray, " inputs"]:
    """A linear form of (x, 1), within ±1."""
    if item == ONE:
        return np.eye(source.d + 1)[-1]
    sort, head, index = item
    if sort == "v":
        return source.values[head, index] / scales[head, index]
    kernel = source.kernels[head]
    return (kernel.keys if sort == "k" else kernel.queries)[index.index(1)]


def _gated(first: Stage, other: Stage, width: int) -> GatedRNN:
    """Two stages as one layer without memory, which reads `width` signals."""
    hidden, outputs = len(first.items), len(other.items)
    inner = (np.eye(width + 1)[side] for side in (first.first, first.other))
    outer = (np.eye(hidden)[side] for side in (other.first, other.other))
    readout = SparseMatrix((Block(None, 0, outputs),), outputs)
    return GatedRNN.from_lambda(Gating(*inner), np.zeros(hidden), Gating(*outer), readout)


def _reading(source: Averages, place: dict[Item, int], scales: Float[np.ndarray, "h d_v"]) -> Reading:
    heads = []
    for head, kernel in enumerate(source.kernels):
        alphas = [tuple(alpha) for alpha in kernel.powers.tolist()]
        of_keys, of_queries = (
            np.array([place[(sort, head, alpha) if any(alpha) else ONE] for alpha in alphas]) for sort in "kq"
        )
        values = np.array([place["v", head, index] for index in range(source.values.shape[1])])
        heads.append(Places(of_keys, of_queries, values, kernel.weights))
    out = np.concatenate([np.diag(each) for each in scales], axis=1)
    return Reading(tuple(heads), place[ONE], len(place), np.array([kernel.least for kernel in source.kernels]), out)


def _rounding(
    source: Averages, reading: Reading, stages: list[Stage], forms: np.ndarray, envelope: Envelope
) -> Float[np.ndarray, "h d_v"]:
    """2 V X/(κ₀ − X) for each head and value, V ≤ 1, and what the values' own errors add."""
    signal = _linear(forms, envelope)
    for stage in stages[1:]:
        signals = signal.handed_on(envelope)
        signal = _product(signals[stage.first], signals[stage.other], envelope)
    signal = signal.handed_on(envelope, SIGNAL_ROUNDINGS)
    rounding = []
    for places, kernel in zip(reading.heads, source.kernels, strict=True):
        keys, queries, values = (signal[which] for which in places[:3])
        weights = np.abs(places.weights)
        apart = float(np.sum(weights * (keys.size * queries.error + keys.error * queries.reach)))
        size = float(np.sum(weights * keys.reach * queries.reach))
        summing = gamma(kernel.features + envelope.horizon + SUM_ROUNDINGS, envelope)
        error = apart + summing * size
        above = error * values.reach + size * values.error
        left = kernel.least - error
        rounding.append((above + error * values.size) / left if left > 0 else np.full(len(values.size), np.inf))
    return np.array(rounding)
