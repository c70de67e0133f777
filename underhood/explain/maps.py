"""y_t = Σ_s c[t, s]: an output as a sum over the steps it comes from, and the map that shows their sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Float

from underhood.core.errors import UnderhoodError

Kind = Literal["exact", "frozen", "jacobian"]
Reduce = Literal["norm", "sum", "none"]


def whole_number(value: Any) -> int | None:
    """As an int, where it is one of Python's or NumPy's; a bool is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


class Completeness(float):
    """|y − Σ_s c[t, s]| / |y| over a sequence: 0 where a map tells all.

    `steps` has |y_t − Σ_s c[t, s]| / max |y| for each t.
    """

    steps: Float[np.ndarray, " t"]

    @classmethod
    def of(cls, outputs: Float[np.ndarray, "t d"], told: Float[np.ndarray, "t d"]) -> Completeness:
        """From the outputs and the sums of their contributions."""
        gaps = np.linalg.norm(outputs - told, axis=1)
        sizes = np.linalg.norm(outputs, axis=1)
        overall = cls(np.linalg.norm(gaps) / max(float(np.linalg.norm(sizes)), np.finfo(np.float64).tiny))
        overall.steps = gaps / max(float(sizes.max()), np.finfo(np.float64).tiny)
        return overall


@dataclass(frozen=True)
class AttentionMap:
    """Which earlier steps each output comes from, and how much of it they explain."""

    weights: Float[np.ndarray, "maps t s"]
    """Row t of a map has what each step s gives to output t; zero for s > t."""
    kind: Kind
    """exact: a sum over values, with no approximation; frozen: activations, gates and norms held at their values;
    jacobian: slopes, ∂y_t/∂x_s x_s."""
    completeness: Completeness
    """Share of the outputs that the contributions leave unexplained, overall; `.steps` for each t."""
    reduce: Reduce = "norm"
    """norm: |c[t, s]|, one map; sum: the sum of its coordinates, with sign, one map; none: a map for each head or
    channel, its scores, or for each output coordinate where there are no scores."""
    names: tuple[str, ...] = ("all",)
    """One for each map."""
    source: Callable[[int], Float[np.ndarray, "s d_out"]] | None = field(default=None, repr=False, compare=False)
    pair_source: Callable[[int], Float[np.ndarray, "r s d_out"]] | None = field(default=None, repr=False, compare=False)

    def contributions(self, t: SupportsIndex) -> Float[np.ndarray, "s d_out"]:
        """c[t, s] for s = 0 … t: the vectors that add up to output t."""
        assert self.source is not None
        return self.source(self._step(t))

    def pairs(self, t: SupportsIndex) -> Float[np.ndarray, "r s d_out"]:
        """What step r in one factor and step s in the other give to output t, where it is a product of two readings
        of the past, as in the gated RNN of Eq. 2: they add up to it. r, s < t are memory times memory.
        """
        if self.pair_source is None:
            raise UnderhoodError("the output is no product of two readings of the past", remedy="Use contributions.")
        return self.pair_source(self._step(t))

    def _step(self, t: Any) -> int:
        length, step = self.weights.shape[1], whole_number(t)
        if step is None or not -length <= step < length:
            raise UnderhoodError(f"expected a step from 0 to {length - 1}", repr(t))
        return step % length


class MapComparison(NamedTuple):
    """How near two maps are."""

    correlation: float
    """Of their entries with s ≤ t, from −1 to 1; NaN where all entries of a map are one number."""
    largest_difference: float
    """Over the largest entry of the second."""


def compare_maps(one: AttentionMap, other: AttentionMap) -> MapComparison:
    """A map beside a reference, such as that of a trained network beside the attention that it implements."""
    for map_ in (one, other):
        if not isinstance(map_, AttentionMap):
            raise UnderhoodError("expected two attention maps", type(map_).__name__, "Use uh.attention_map(model, xs).")
    if one.weights.shape != other.weights.shape or one.reduce != other.reduce:
        shown = " and ".join(f"{map_.weights.shape} by {map_.reduce}" for map_ in (one, other))
        raise UnderhoodError("expected two maps of the same shape and reduction", shown)
    rows, columns = one.weights.shape[1:]
    causal = np.tri(rows, columns, columns - rows, dtype=bool)  # of maps cut to their last rows, too
    first, second = (np.asarray(map_.weights[:, causal], np.float64).ravel() for map_ in (one, other))
    centred = [entries - entries.mean() for entries in (first, second)]
    spread = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1]))
    correlation = float(centred[0] @ centred[1]) / spread if spread else float("nan")
    largest = max(float(np.abs(second).max()), np.finfo(np.float64).tiny)
    return MapComparison(correlation, float(np.abs(first - second).max()) / largest)
