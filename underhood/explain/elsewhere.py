"""Does a network run the algorithm elsewhere, too? Larger W*, fewer and more observations, and noise.

Where they were fitted, good predictors of a noise-free regression are all alike: each comes near to the truth. They
part where the tasks are harder, so a network is asked there as well, and the algorithms keep their parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs.functions import Batched
from underhood.explain.algorithms import Observed, Rule
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.task import HELD_OUT, draw

OTHER_LENGTH = "T = "
Tasks = Float[Array, "b steps d"]


@dataclass(frozen=True)
class Settings:
    """Which tasks, and what a name needs on them."""

    tasks: int = 1024
    scales: tuple[float, ...] = (2.0, 4.0)
    """Of W*."""
    fewer: int = 3
    """T over the smaller number of observations; the larger is 2T."""
    noise: float = 0.5
    """Standard deviation of what is added to the y that are shown, whose own is 1."""
    least_r2: float = 0.99
    """What the algorithm must explain of the network under each condition."""
    same: float = 1e-4
    """Share of the predictions by which two algorithms may differ and still be one, a gradient step with γ = 1, say."""
    better: float = 2.0
    """How much less than another algorithm one must leave open, all conditions together."""
    negligible: float = 1e-6
    """What is left open below this is a part of a parameter, not of the algorithm."""
    least_r2_of_one_length: float = 0.9999
    """What an algorithm must explain of a network that takes no other number of observations."""


SETTINGS = Settings()


@dataclass(frozen=True)
class Condition:
    """How much of the network each algorithm explains on tasks that are not those it was fitted to."""

    name: str
    r2: dict[str, float | None]
    """By algorithm; None where the network takes no such tasks."""

    @property
    def is_length(self) -> bool:
        """Whether it is about another number of observations."""
        return self.name.startswith(OTHER_LENGTH)

    def holds(self, name: str) -> bool:
        """Whether this algorithm still is the network's."""
        r2 = self.r2[name]
        return r2 is None or r2 >= SETTINGS.least_r2


@dataclass(frozen=True)
class Elsewhere:
    """All conditions, and how far each pair of algorithms is apart under any of them."""

    conditions: tuple[Condition, ...]
    apart: Float[Array, "rules rules"]

    @classmethod
    def of(cls, predict: Batched, rules: list[Rule], task: LinearRegression, seed: int, count: int) -> Elsewhere:
        """Ask the network and the algorithms."""
        conditions, apart = [], np.zeros((len(rules), len(rules)))
        for name, xs in _tasks(task, seed, count):
            predicted = [rule(Observed.of(xs, task.d_x)) for rule in rules]
            apart = np.maximum(apart, _distances(predicted))
            try:
                wanted = predict(xs)
            except UnderhoodError:
                wanted = None  # a network of one length, for example
            r2 = [None if wanted is None else _r2(wanted, one) for one in predicted]
            conditions.append(Condition(name, dict(zip((rule.name for rule in rules), r2, strict=True))))
        return cls(tuple(conditions), apart)

    def holds(self, name: str, at_home: float) -> bool:
        """Whether an algorithm explains the network under every condition that it takes."""
        lengths = [condition for condition in self.conditions if condition.is_length]
        one_length = bool(lengths) and all(condition.r2[name] is None for condition in lengths)
        if one_length and at_home < SETTINGS.least_r2_of_one_length:
            return False
        return all(condition.holds(name) for condition in self.conditions)

    def missed(self, name: str, at_home: float) -> float:
        """What it leaves open, at most 1 under each condition, on average over those and the one of the fit."""
        asked = [r2 for condition in self.conditions if (r2 := condition.r2[name]) is not None]
        return float(np.mean([min(1.0, 1 - r2) for r2 in (at_home, *asked)]))


def choose(names: list[str], at_home: list[float], enough: list[bool], elsewhere: Elsewhere) -> int | None:
    """The algorithm that gives the name: it explains enough everywhere, and no other algorithm comes near it.

    Of several that are one and the same wherever they were asked, the first, which is the simplest.
    """
    missed = [elsewhere.missed(name, r2) for name, r2 in zip(names, at_home, strict=True)]
    passing = [index for index, name in enumerate(names) if enough[index] and elsewhere.holds(name, at_home[index])]
    if not passing:
        return None
    limit = max(SETTINGS.better * min(missed[index] for index in passing), SETTINGS.negligible)
    tied = [index for index in range(len(names)) if missed[index] <= limit]
    chosen = next((index for index in passing if missed[index] <= limit), None)
    if chosen is None or any(elsewhere.apart[chosen, other] > max(SETTINGS.same, limit) for other in tied):
        return None
    return chosen


def _tasks(task: LinearRegression, seed: int, count: int) -> Iterator[tuple[str, Tasks]]:
    """One draw of long sequences, cut, scaled and spoiled; beyond what training and fitting have seen."""
    observations, fewer = task.examples, max(1, round(task.examples / SETTINGS.fewer))
    whole = draw(_with_examples(task, 2 * observations), seed, count, stream=HELD_OUT, part=90)[0][: SETTINGS.tasks]
    usual, of_y = _cut(whole, observations), slice(task.d_x, None)
    for scale in SETTINGS.scales:
        xs = usual.copy()
        xs[:, :, of_y] *= scale
        yield f"W* × {scale:g}", xs
    for length in (fewer, 2 * observations):
        yield f"{OTHER_LENGTH}{length}", _cut(whole, length)
    xs = usual.copy()
    shown = xs[:, :-1, of_y]
    xs[:, :-1, of_y] += SETTINGS.noise * np.random.default_rng(seed).standard_normal(shown.shape)
    yield f"noise {SETTINGS.noise:g}", xs


def _with_examples(task: LinearRegression, examples: int) -> LinearRegression:
    """The same task with another number of observations."""
    return LinearRegression(examples, task.d_x, task.d_y, task.inputs)


def _cut(xs: Tasks, observations: int) -> Float[Array, "b fewer d"]:
    return np.concatenate([xs[:, :observations], xs[:, -1:]], axis=1)


def _r2(wanted: Array, predicted: Array) -> float:
    return r_squared(wanted, predicted) if np.isfinite(predicted).all() else -np.inf


def _distances(predicted: list[Array]) -> Float[Array, "n n"]:
    """Share of the predictions' power by which each two differ."""
    power = np.array([max(float(np.sum(one**2)), np.finfo(float).tiny) for one in predicted])
    gaps = [[float(np.sum((one - other) ** 2)) for other in predicted] for one in predicted]
    return np.array(gaps) / np.minimum(power[:, None], power)
