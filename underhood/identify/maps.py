"""y_t = Σ_s c[t, s]: an output as a sum over the steps it comes from, and the map that shows their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float

from underhood.errors import UnderhoodError

Kind = Literal["exact", "frozen", "jacobian"]
Reduce = Literal["norm", "sum", "none"]


class Completeness(float):
    """|y − Σ_s c[t, s]| / |y| over a sequence: 0 where a map tells all. `steps` has |y_t − Σ_s c[t, s]| / max |y| for each t."""

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
    """norm: |c[t, s]|, one map; sum: the sum of its coordinates, with sign, one map; none: a map for each head or channel."""
    names: tuple[str, ...] = ("all",)
    """One for each map."""
    source: Callable[[int], Float[np.ndarray, "s d_out"]] | None = field(default=None, repr=False, compare=False)

    def contributions(self, t: int) -> Float[np.ndarray, "s d_out"]:
        """c[t, s] for s = 0 … t: the vectors that add up to output t."""
        length = self.weights.shape[1]
        if not -length <= t < length:
            raise UnderhoodError(f"expected a step from 0 to {length - 1}", t)
        assert self.source is not None
        return self.source(t % length)


@dataclass(frozen=True)
class Compared:
    """How alike two maps are."""

    correlation: float
    """Of the entries with s ≤ t; 1 for maps that are the same up to a positive factor and a constant."""
    difference: float
    """Largest difference of two entries, over the largest entry of the second map."""


def compare_maps(found: AttentionMap, wanted: AttentionMap) -> Compared:
    """Two maps of one sequence, such as a trained network's and that of the attention it implements."""
    if found.weights.shape != wanted.weights.shape or found.reduce != wanted.reduce:
        shapes = [f"{one.weights.shape} by {one.reduce}" for one in (found, wanted)]
        raise UnderhoodError("expected two maps of the same shape and reduction", " and ".join(shapes))
    rows, columns = found.weights.shape[1:]
    there = np.tri(rows, columns, columns - rows, dtype=bool)  # s ≤ t, also where only the last rows are compared
    ours, theirs = (np.asarray(one.weights, np.float64)[:, there].ravel() for one in (found, wanted))
    difference = np.max(np.abs(ours - theirs)) / max(float(np.max(np.abs(theirs))), np.finfo(np.float64).tiny)
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    spread = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    return Compared(float(ours @ theirs) / spread if spread else 1.0, float(difference))
