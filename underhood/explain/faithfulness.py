"""corr(Σ_{s∈S} c[t, s], y_t − y_t(S)) over random subsets S of the earlier steps: whether a map can be believed.

Sensitivity-n (Ancona et al. 2018), for subsets of one step, of an eighth and of a third of the steps. The own step is
left as it is: it asks the question, and attention without its query has no answer. Two controls are measured on the
same subsets: recency, y_t shared out by 1/(t − s), and the map with its earlier steps shuffled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Bool, Float

from underhood.core.errors import UnderhoodError
from underhood.core.model import AbstractModel
from underhood.explain.attention_map import inside, sequence_of, settings_of, state_of
from underhood.explain.maps import AttentionMap, whole_number
from underhood.explain.replaced import Runs, baseline_of

SUBSETS = 100  # of each size, or as many as there are
ROWS = 8  # of a map with more: evenly spaced ones, and the last
RESAMPLINGS, SHUFFLES, MIDDLE_95 = 400, 100, (0.025, 0.975)
LEAST = 0.5  # sensitivity to a third of the steps from which a map passes

Interval = tuple[float, float]


@dataclass(frozen=True)
class Faithfulness:
    """How well the sums of a map's contributions tell what removing steps changes."""

    sensitivity: dict[int, float]
    """Size of the subsets → correlation of what the map says with what changes, the mean over rows."""
    interval: dict[int, Interval]
    """Of the sensitivity, by drawing the subsets again: 95 %."""
    recency: dict[int, float]
    """The sensitivity of a map that knows nothing but which steps are recent."""
    random: dict[int, float]
    """The sensitivity of the same map with its earlier steps shuffled, the mean of a hundred times."""
    chance: dict[int, float]
    """The largest of those hundred: what a map that is wrong about the steps may reach."""

    @property
    def passed(self) -> bool:
        """Whether sensitivity to the largest subsets reaches one half and is above that of a hundred shuffled maps."""
        largest = max(self.sensitivity)
        return self.sensitivity[largest] >= LEAST and self.sensitivity[largest] > self.chance[largest]

    def as_data(self) -> dict[str, Any]:
        """What `--json` prints."""
        names = ("sensitivity", "interval", "recency", "random")
        return {name: {str(size): value for size, value in getattr(self, name).items()} for name in names}

    def __repr__(self) -> str:
        lines = [f"Faithfulness: {'passed' if self.passed else 'failed'}"]
        for size, value in self.sensitivity.items():
            low, high = self.interval[size]
            lines.append(
                f"  {size} step{'s' * (size > 1)} replaced: sensitivity {value:.2f} ({low:.2f} to {high:.2f}), "
                f"recency {self.recency[size]:.2f}, shuffled {self.random[size]:.2f}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>"


def faithfulness(
    map_: AttentionMap,
    model: Any,
    xs: Any,
    *,
    layer: SupportsIndex | None = None,
    baseline: Any = "zero",
    state: Any = None,
    subsets: SupportsIndex | None = None,
    seed: int = 0,
) -> Faithfulness:
    """corr(Σ_{s∈S} c[t, s], y_t − y_t(S)) over random subsets S of the steps before t: whether `map_` can be believed.

    **Arguments:**

    - `map_`: A map of `model` on `xs`; of one with many rows, eight are checked.
    - `model`, `xs`: What the map was made of.
    - `layer`, `state`: As they were for the map.
    - `baseline`: What replaces the steps of a subset, as for `uh.attention_map`.
    - `subsets`: How many of each size are drawn; 100 unless given, or as many as there are.
    - `seed`: Of the draws.

    **Returns:**

    A `Faithfulness`: `.sensitivity`, `.interval`, `.recency` and `.random`, each by size: 1, an eighth and a third of
    the steps; and `.passed`.
    """
    if not isinstance(map_, AttentionMap):
        raise UnderhoodError("expected an attention map", type(map_).__name__, "Use uh.attention_map(model, xs).")
    if not isinstance(model, AbstractModel):
        raise UnderhoodError("expected a model of this package", type(model).__name__, "Use uh.from_torch(module).")
    with settings_of(model):
        sequence = sequence_of(model, xs)
        if layer is not None:
            model, sequence = inside(model, sequence, layer)
        if len(sequence) != map_.length:
            raise UnderhoodError(f"expected the sequence of the map, {map_.length} steps", len(sequence))
        rows = _rows(map_)
        sizes = sorted({max(1, len(sequence) // part) for part in (len(sequence), 8, 3)})
        checked = [t for t in rows if t >= max(sizes)]
        if not checked:
            raise UnderhoodError(f"expected a row with {max(sizes) + 1} steps or more to check", f"rows {rows}"[:60])
        count = _count(subsets, max(checked), max(sizes))
        baselines, state = baseline_of(baseline, sequence, seed), state_of(model, state)
        random, told = np.random.default_rng(seed), []
        for t in checked:
            index = map_.steps.index(t)
            direction = None if map_.directions is None else map_.directions[index : index + 1]
            runs = Runs(model, sequence, state, (t,), direction)
            told.append(_of_row(map_.contributions(t), runs, baselines, sizes, count, random))
    return _summary(sizes, told, random)


def _rows(map_: AttentionMap) -> list[int]:
    steps = sorted(map_.steps)
    if len(steps) <= ROWS:
        return steps
    return [steps[index] for index in np.unique(np.linspace(len(steps) // 2, len(steps) - 1, ROWS).round().astype(int))]


def _count(subsets: Any, steps: int, size: int) -> int:
    if subsets is None:
        return SUBSETS
    count, most = whole_number(subsets), math.comb(steps, size)
    if count is None or count < 2:
        raise UnderhoodError("expected subsets of 2 or more", repr(subsets))
    if count > most:
        raise UnderhoodError(f"expected at most {most} subsets: there are no more of {size} of {steps} steps", count)
    return count


def _drawn(steps: int, size: int, count: int, random: np.random.Generator) -> Bool[np.ndarray, "n steps"]:
    """Different subsets of a size, all of them where there are few."""
    chosen: dict[tuple[int, ...], None] = {}
    most = min(count, math.comb(steps, size))
    while len(chosen) < most:
        chosen[tuple(sorted(random.choice(steps, size, replace=False).tolist()))] = None
    drawn = np.zeros((len(chosen), steps), bool)
    for index, subset in enumerate(chosen):
        drawn[index, list(subset)] = True
    return drawn


# By size: what changes and what the map says, each (subsets, numbers); the correlations of recency and of each shuffle.
_Told = dict[int, tuple[np.ndarray, np.ndarray, float, np.ndarray]]


def _of_row(
    contributions: Float[np.ndarray, "s n"],
    runs: Runs,
    baselines: np.ndarray,
    sizes: list[int],
    count: int,
    random: np.random.Generator,
) -> _Told:
    steps, earlier = len(contributions) - 1, np.asarray(contributions[:-1], np.float64)
    output = runs.outputs[0] if runs.directions is None else runs.outputs[0] @ runs.directions.T
    recent = 1 / np.arange(steps, 0, -1.0)
    recency = np.outer(recent / recent.sum(), output)
    orders = [random.permutation(steps) for _ in range(SHUFFLES)]
    told: _Told = {}
    for size in sizes:
        drawn = _drawn(steps, size, count, random)
        kept = np.pad(~drawn, ((0, 0), (0, len(runs.xs) - steps)), constant_values=True)
        changed = output - runs.masked(kept, baselines)[:, 0]
        shuffled = np.array([_correlation(changed, drawn @ earlier[order]) for order in orders])
        told[size] = changed, drawn @ earlier, _correlation(changed, drawn @ recency), shuffled
    return told


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    first, second = (array.ravel() - array.mean() for array in (one, other))
    spread = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / spread if spread else 0.0


def _summary(sizes: list[int], told: list[_Told], random: np.random.Generator) -> Faithfulness:
    sensitivity, interval, recency, shuffled, chance = {}, {}, {}, {}, {}
    for size in sizes:
        rows = [row[size] for row in told]
        sensitivity[size] = float(np.mean([_correlation(row[0], row[1]) for row in rows]))
        recency[size] = float(np.mean([row[2] for row in rows]))
        controls = np.mean([row[3] for row in rows], axis=0)
        shuffled[size], chance[size] = float(controls.mean()), float(controls.max())
        drawn = []
        for _ in range(RESAMPLINGS):
            picks = [random.integers(len(row[0]), size=len(row[0])) for row in rows]
            pairs = zip(rows, picks, strict=True)
            drawn.append(np.mean([_correlation(row[0][pick], row[1][pick]) for row, pick in pairs]))
        low, high = np.quantile(drawn, MIDDLE_95)
        interval[size] = (float(low), float(high))
    return Faithfulness(sensitivity, interval, recency, shuffled, chance)
