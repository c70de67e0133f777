"""y_t = Σ_s c[t, s]: an output as a sum over the steps it comes from, and the map that shows their sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Float

from underhood.core.display import Displayed, Summary
from underhood.core.errors import UnderhoodError

Kind = Literal["exact", "frozen", "jacobian", "deletion", "shapley", "integrated"]
Reduce = Literal["norm", "sum", "none"]

# Σ|c| over |y| of independent terms grows as the root of their number; three times that, or ten, is much.
MUCH, MUCH_BY_ROOT = 10.0, 3.0


class CancellationWarning(UserWarning):
    """Contributions much larger than the output that they add up to."""


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


class Cancellation(float):
    """Σ_s |c[t, s]| over |y_t|: near 1 where contributions agree; large where they undo each other."""

    steps: Float[np.ndarray, " t"]
    """For each row."""

    @classmethod
    def of(cls, outputs: Float[np.ndarray, "t d"], sizes: Float[np.ndarray, " t"]) -> Cancellation:
        """From the outputs and Σ_s |c[t, s]| of each."""
        lengths, tiny = np.linalg.norm(outputs, axis=1), np.finfo(np.float64).tiny
        overall = cls(float(np.sum(sizes)) / max(float(lengths.sum()), tiny))
        overall.steps = sizes / np.maximum(lengths, tiny)
        return overall


@dataclass(frozen=True, repr=False)
class AttentionMap(Displayed):
    """Which earlier steps each output comes from, and how much of it they explain."""

    weights: Float[np.ndarray, "maps t s"]
    """Row t of a map has what each step s gives to output t; zero for s > t."""
    kind: Kind
    """What c[t, s] is, and what it holds fixed: the table in docs/attention-maps.md."""
    completeness: Completeness
    """Share of the outputs that the contributions leave unexplained, overall; `.steps` for each row. It does not say
    that a map can be believed: `uh.faithfulness` does."""
    reduce: Reduce = "norm"
    """norm: |c[t, s]|, one map; sum: the sum of its coordinates, or c[t, s] · target, with sign, one map; none: a map
    for each head or channel, its scores, or for each output coordinate where there are no scores."""
    names: tuple[str, ...] = ("all",)
    """One for each map."""
    source: Callable[[int], Float[np.ndarray, "s d_out"]] | None = field(default=None, repr=False, compare=False)
    pair_source: Callable[[int], Float[np.ndarray, "r s d_out"]] | None = field(default=None, repr=False, compare=False)
    cancellation: Cancellation | float = 0.0
    """Σ_s |c[t, s]| over |y_t|, overall; `.steps` for each row."""
    rows: tuple[int, ...] | None = None
    """The steps t whose outputs the rows of `weights` explain; None: all of them."""
    directions: Float[np.ndarray, "t d_out"] | None = field(default=None, repr=False, compare=False)
    """What a target's contributions are projected on, for each row."""
    standard_error: Float[np.ndarray, "t s"] | None = field(default=None, repr=False, compare=False)
    """Of |c[t, s]|, of a map from random permutations."""

    @property
    def length(self) -> int:
        """Steps of the sequence."""
        return self.weights.shape[2]

    @property
    def steps(self) -> tuple[int, ...]:
        """The step t of each row."""
        return tuple(range(self.length)) if self.rows is None else self.rows

    @property
    def warning(self) -> str | None:
        """A line about contributions that mostly cancel; None where they do not."""
        if self.cancellation <= max(MUCH, MUCH_BY_ROOT * self.length**0.5):
            return None
        return (
            f"the contributions are {float(self.cancellation):.3g} times as large as the outputs that they add up to, "
            "so that most of them cancel: check this map with uh.faithfulness before you believe it"
        )

    def _summary(self) -> Summary:
        maps = f"{len(self.names)} map{'s' * (len(self.names) != 1)} ({self.reduce})"
        facts = {
            "completeness": f"{float(self.completeness):.2g} of the outputs are unexplained",
            "cancellation": f"{float(self.cancellation):.3g} (Σ|c| over |y|)",
            "warning": self.warning,
        }
        return Summary(f"AttentionMap: {self.kind}, {len(self.steps)} rows of {self.length} steps, {maps}", facts)

    def contributions(self, t: SupportsIndex) -> Float[np.ndarray, "s d_out"]:
        """c[t, s] for s = 0 … t: the vectors that add up to output t; numbers (s, 1) where there is a target.

        **Arguments:**

        - `t`: The step of the output; negative ones count from the end.

        **Returns:**

        An array with a row for each step s ≤ t.
        """
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
        length, step = self.length, whole_number(t)
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
    """A map beside a reference, such as that of a trained network beside the attention that it implements.

    **Arguments:**

    - `one`: The map to judge.
    - `other`: The reference, of the same shape and reduction.

    **Returns:**

    The correlation of their entries and their largest difference.
    """
    for map_ in (one, other):
        if not isinstance(map_, AttentionMap):
            raise UnderhoodError("expected two attention maps", type(map_).__name__, "Use uh.attention_map(model, xs).")
    if one.weights.shape != other.weights.shape or one.reduce != other.reduce:
        shown = " and ".join(f"{map_.weights.shape} by {map_.reduce}" for map_ in (one, other))
        raise UnderhoodError("expected two maps of the same shape and reduction", shown)
    if one.steps != other.steps:
        raise UnderhoodError("expected two maps of the same rows", f"{one.steps} and {other.steps}"[:80])
    causal = np.arange(one.length) <= np.array(one.steps)[:, None]
    first, second = (np.asarray(map_.weights[:, causal], np.float64).ravel() for map_ in (one, other))
    centred = [entries - entries.mean() for entries in (first, second)]
    spread = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1]))
    correlation = float(centred[0] @ centred[1]) / spread if spread else float("nan")
    largest = max(float(np.abs(second).max()), np.finfo(np.float64).tiny)
    return MapComparison(correlation, float(np.abs(first - second).max()) / largest)
