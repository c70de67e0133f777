"""How two numbers of each run go together: Spearman's ρ, with an interval over the networks that were trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

RESAMPLED = 2000  # times, for an interval
NEAREST = 1e-9  # distance from attention that a figure shows

Records = list[dict[str, Any]]
Measure = Callable[[dict[str, Any]], float]
Names = tuple[str, ...]  # of a record's entries


def distance(record: dict[str, Any]) -> float:
    """1 − R² of the nearest attention, at most 1: a network that says next to nothing has no R² to speak of."""
    return min(max(1 - record["attention_r2"], NEAREST), 1.0)


def network_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """The architecture and size; its runs differ in their seeds."""
    return tuple(record[name] for name in ("model", "layers", "hidden"))


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Spearman's ρ, the interval that 95 % of resampled runs give, and the number of runs."""

    value: float
    low: float
    high: float
    runs: int

    @property
    def text(self) -> str:
        value, low, high = (f"{one:z.2f}" for one in (self.value, self.low, self.high))  # z: no "-0.00"
        return f"{value} ({low} to {high}; {self.runs} runs)"


def correlation(records: Records, of: Measure = distance, within: Names = ()) -> Correlation:
    """Of `of` and validation loss. What counts is the order: ranks, or ranks less their mean over the runs that agree
    in `within`, so that a difference between architectures, say, adds nothing.

    Seeds of one network are alike: networks are drawn again for the interval, each with all of its seeds.
    """
    of_network: dict[tuple[Any, ...], list[int]] = {}
    for place, record in enumerate(records):
        of_network.setdefault(network_of(record), []).append(place)
    groups, random = [np.array(places) for places in of_network.values()], np.random.default_rng(0)
    measured, drawn = _Measured.of(records, of, within), []
    for _ in range(RESAMPLED):
        again = random.integers(len(groups), size=len(groups))
        drawn.append(measured.correlation(np.concatenate([groups[index] for index in again])))
    drawn = [one for one in drawn if not np.isnan(one)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn else (np.nan, np.nan)  # none where all runs are alike
    return Correlation(measured.correlation(), float(low), float(high), len(records))


def of_each_seed(records: Records, of: Measure = distance, within: Names = ()) -> tuple[float, ...]:
    """The correlation in the runs of each seed alone; a seed with a single run has none."""
    seeds = sorted({r["seed"] for r in records})
    found = [_Measured.of([r for r in records if r["seed"] == seed], of, within).correlation() for seed in seeds]
    return tuple(one for one in found if not np.isnan(one))


class _Measured(NamedTuple):
    """The two numbers of each run, and which kind of network it is of, so that runs can be drawn again quickly."""

    both: Float[np.ndarray, "2 runs"]
    kinds: Int[np.ndarray, " runs"]

    @classmethod
    def of(cls, records: Records, measure: Measure, within: Names) -> _Measured:
        kinds = [" ".join(str(r[name]) for name in within) for r in records]
        both = np.array([[measure(r) for r in records], [r["validation_loss"] for r in records]])
        return cls(both, np.unique(kinds, return_inverse=True)[1])

    def correlation(self, runs: Any = slice(None)) -> float:
        """Of ranks less their mean in each kind; NaN where all are alike."""
        kinds, ranks = self.kinds[runs], rankdata(self.both[:, runs], axis=1)
        sizes = np.maximum(np.bincount(kinds), 1)
        ranks -= np.array([np.bincount(kinds, row) / sizes for row in ranks])[:, kinds]
        lengths = np.linalg.norm(ranks, axis=1)
        return float(ranks[0] @ ranks[1] / np.prod(lengths)) if lengths.all() else float("nan")
