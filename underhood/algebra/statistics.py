"""R² and rank correlation, each with an interval by bootstrap: what is independent is drawn again, and stays whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from underhood.algebra.quadratic import Array

DRAWS, RANK_DRAWS = 400, 2000  # for the interval of R², and of a correlation, which rests on fewer things
MIDDLE_95 = (0.025, 0.975)

Interval = tuple[float, float]


def r_squared(wanted: Float[Array, "*n d_out"], predicted: Float[Array, "*n d_out"]) -> float:
    """R² = 1 − Σ|y − ŷ|² / Σ|y − ȳ|², with ȳ the mean of each output over all other axes."""
    wanted = np.asarray(wanted, np.float64)
    spread = np.sum((wanted - wanted.reshape(-1, wanted.shape[-1]).mean(axis=0)) ** 2)
    return float(1.0 - np.sum((wanted - predicted) ** 2) / max(spread, np.finfo(float).tiny))


def r_squared_interval(
    wanted: Float[Array, "b *n d_out"], predicted: Float[Array, "b *n d_out"], random: np.random.Generator
) -> tuple[float, Interval]:
    """R² and its 95 % interval; the entries of the first axis are drawn again, as steps of a sequence are alike."""
    wanted = np.asarray(wanted, np.float64)
    centre, tiny = wanted.reshape(-1, wanted.shape[-1]).mean(axis=0), np.finfo(float).tiny
    inside = tuple(range(1, wanted.ndim))
    errors = np.sum((wanted - predicted) ** 2, axis=inside)
    spread = np.sum((wanted - centre) ** 2, axis=inside)
    if not np.isfinite(errors).all():
        return -np.inf, (-np.inf, -np.inf)
    drawn = random.integers(len(errors), size=(DRAWS, len(errors)))
    resampled = 1.0 - errors[drawn].sum(axis=1) / np.maximum(spread[drawn].sum(axis=1), tiny)
    low, high = np.quantile(resampled, MIDDLE_95)
    return float(1.0 - errors.sum() / max(spread.sum(), tiny)), (float(low), float(high))


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Spearman's ρ, the interval that 95 % of resamplings give, and the number of points."""

    value: float
    low: float
    high: float
    points: int


def rank_correlation(
    first: Sequence[float], second: Sequence[float], groups: Sequence[Any], kinds: Sequence[Any] | None = None
) -> Correlation:
    """Spearman's ρ of two measures: the correlation of their ranks.

    **Arguments:**

    - `first`, `second`: Two numbers per point.
    - `groups`: What each point belongs to. Points of a group are alike (seeds of one network, say): for the interval,
        groups are drawn again, each with all of its points.
    - `kinds`: If given, ranks are taken less their mean over the points of a kind, so that differences between kinds
        count for nothing.

    **Returns:**

    A `Correlation`; its numbers are NaN where all points are alike.
    """
    both = np.array([first, second], np.float64)
    kind = np.unique([str(one) for one in kinds or ["all"] * len(groups)], return_inverse=True)[1]
    places: dict[Any, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    low, high = _bootstrap(lambda points: _of_ranks(both[:, points], kind[points]), list(places.values()))
    return Correlation(_of_ranks(both, kind), low, high, len(groups))


def _bootstrap(statistic: Callable[[np.ndarray], float], groups: list[list[int]]) -> Interval:
    random, members = np.random.default_rng(0), [np.array(group) for group in groups]
    drawn = []
    for _ in range(RANK_DRAWS):
        again = random.integers(len(members), size=len(members))
        drawn.append(statistic(np.concatenate([members[index] for index in again])))
    drawn = [value for value in drawn if not np.isnan(value)]
    low, high = np.quantile(drawn, MIDDLE_95) if drawn else (np.nan, np.nan)
    return float(low), float(high)


def _of_ranks(both: Float[np.ndarray, "2 n"], kinds: Int[np.ndarray, " n"]) -> float:
    """The correlation of ranks less their mean in each kind."""
    ranks, sizes = rankdata(both, axis=1), np.maximum(np.bincount(kinds), 1)
    ranks -= np.array([np.bincount(kinds, row) / sizes for row in ranks])[:, kinds]
    lengths = np.linalg.norm(ranks, axis=1)
    return float(ranks[0] @ ranks[1] / np.prod(lengths)) if lengths.all() else float("nan")
