"""f(x) twice, f of changed futures and pasts, f(c·x), f against regressions: the tests behind a diagnosis.

Each takes a function with sequences to fit on and others to test on, and says how much of the output it explains. Most
run in a random subspace of the inputs, so that their cost does not depend on d: what an attention with any of these
defects does to a subspace is again such an attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_outputs import regression
from underhood.decompiler.from_outputs.functions import Batched
from underhood.decompiler.from_outputs.parts import memoryless_r2
from underhood.decompiler.from_outputs.regression import explained, fit_dense
from underhood.decompiler.from_outputs.update_rules import delta_rule_r2, is_average, softmax_r2

DIMENSIONS = 3  # of the subspace
LENGTH, FITTED, HELD = 16, 256, 64


@dataclass(frozen=True)
class Settings:
    """What counts as an explanation."""

    explains: float = 0.99
    """Least R² of an explanation,"""
    closes: float = 0.1
    """which leaves at most this share of what attention misses."""
    as_good: float = 10.0
    """Ratio of misses up to which the simpler of two explanations is the better one."""
    rough: float = 0.3
    """Change of what attention misses, relative, under a tiny change of the input: rounding does that."""
    nudges: tuple[float, ...] = (1e-6, 1e-4, 2e-3)
    """Changes of the input, relative: beyond rounding to float32, bfloat16 and float16."""
    repeats: float = 1e-5
    """Of the largest output, between two calls with one input,"""
    causal: float = 1e-4
    """and between two calls whose inputs differ in the future alone, or in the other sequences of the batch."""
    least_share: float = 0.01
    """Of a part that is worth naming,"""
    most: float = 0.5
    """and of one that is most of the output."""


SETTINGS = Settings()


@dataclass(frozen=True)
class Hypothesis:
    """What a test says: the share of the output that the explanation covers, None where there is no such number."""

    r2: float | None
    detail: str = ""
    certain: bool = False  # by a property that nothing else has, however much the fit explains


class Subject:
    """A function, with sequences to fit on and others to test on."""

    def __init__(
        self, call: Batched, d: int, length: int, input_bound: float, random: np.random.Generator, held: Any = None
    ) -> None:
        self.call, self.d, self.length, self.input_bound, self.random = call, d, length, input_bound, random
        self.fit: tuple[Array, Array] = self.drawn(FITTED) if held is None else held
        self.held: tuple[Array, Array] = self.drawn(HELD) if held is None else held

    @classmethod
    def in_subspace(cls, call: Batched, d: int, length: int, input_bound: float, seed: int) -> Subject:
        """The function on a random subspace of its inputs."""
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.standard_normal((d, min(d, DIMENSIONS))))[0].T
        return cls(lambda batch: call(batch @ basis), len(basis), min(length, LENGTH), input_bound, random)

    def drawn(self, count: int) -> tuple[Array, Array]:
        """Fresh sequences and outputs."""
        xs = self.random.standard_normal((count, self.length, self.d))
        xs /= np.maximum(np.linalg.norm(xs, axis=2, keepdims=True) / self.input_bound, 1)
        return xs, self.call(xs)

    @cached_property
    def again(self) -> tuple[Array, Array]:
        """The outputs on `held`, asked for twice more."""
        return self.call(self.held[0]), self.call(self.held[0])

    @cached_property
    def beside(self) -> Array:
        """Those of the first half of `held`, behind other sequences."""
        half = self.held[0][: len(self.held[0]) // 2]
        others = self.random.standard_normal(half.shape)
        return self.call(np.concatenate([others, half]))[len(half) :]

    @cached_property
    def plain(self) -> float:
        """R² of attention."""
        return explained(regression.attention, self.fit, self.held)

    @cached_property
    def degree(self) -> Hypothesis | None:
        """f(x) = c^-k f(c·x) for c = ½ and ¼, with one k that is not three."""
        xs, ys = self.held
        half, quarter = self.call(xs / 2), self.call(xs / 4)
        degree = float(np.log2(np.linalg.norm(ys) / np.linalg.norm(quarter))) / 2
        if not np.isfinite(degree) or abs(degree - 3) < 0.05:
            return None
        degree = round(degree) if abs(degree - round(degree)) < 0.02 else degree
        r2 = r_squared(np.concatenate([ys, ys]), np.concatenate([half * 2.0**degree, quarter * 4.0**degree]))
        return Hypothesis(r2, f": f(c·x) grows as c^{degree:.3g}") if r2 >= SETTINGS.explains else None

    def missed(self, xs: Array, ys: Array) -> Array:
        """What the nearest attention leaves over."""
        return ys - fit_dense(*self.fit, (1.0,))(xs)


def is_random(subject: Subject) -> Hypothesis | None:
    """f(x) ≠ f(x), now or since it was first asked. Half of the squared difference is the variance of the noise."""
    (_, first), (ys, again) = subject.held, subject.again
    if _same(ys, again, SETTINGS.repeats):
        if _same(first, ys, SETTINGS.repeats) or is_batch_dependent(subject) is not None:
            return None
        ys = first
    noise = 0.5 * np.sum((again - ys) ** 2)
    return Hypothesis(float(1 - noise / np.sum((ys - ys.mean(axis=(0, 1))) ** 2)))


def is_batch_dependent(subject: Subject) -> Hypothesis | None:
    """A sequence among others, in another place: f of it must be what it was."""
    ys, beside = subject.again[0][: len(subject.beside)], subject.beside
    return None if _same(ys, beside, SETTINGS.causal) else Hypothesis(r_squared(ys, beside))


def _same(ys: Array, others: Array, share: float) -> bool:
    return np.allclose(others, ys, rtol=0, atol=share * np.abs(ys).max())


def looks_ahead(subject: Subject) -> Hypothesis | None:
    """Outputs of the first half, with other inputs in the second."""
    xs, ys = subject.held
    half = subject.length // 2
    changed = np.concatenate([xs[:, :half], subject.random.standard_normal(xs[:, half:].shape)], axis=1)
    if _same(ys[:, :half], subject.call(changed)[:, :half], SETTINGS.causal):
        return None
    return Hypothesis(explained(regression.looks_ahead, subject.fit, subject.held))


def has_limited_precision(subject: Subject) -> Hypothesis | None:
    """Whether what attention misses is another under a change of the input that is next to none: rounding is."""
    if not subject.plain > SETTINGS.explains or not is_rough(
        subject.call, subject.missed, subject.held, subject.random
    ):
        return None
    return Hypothesis(subject.plain, f": about {np.sqrt(1 - subject.plain):.0e} of the output")


def is_rough(
    call: Batched, missed: Callable[[Array, Array], Array], held: tuple[Array, Array], random: np.random.Generator
) -> bool:
    """Whether `missed`, the part of the outputs that something leaves over, is rounding."""
    xs, ys = held
    here = missed(xs, ys)
    for nudge in SETTINGS.nudges:
        nearby = xs * (1 + nudge * random.standard_normal(xs.shape))
        if np.linalg.norm(missed(nearby, call(nearby)) - here) > SETTINGS.rough * np.linalg.norm(here):
            return True
    return False


def is_softmax(subject: Subject) -> Hypothesis | None:
    """One input repeated gives one output, linear in the input: an average."""
    try:
        if is_average(subject.call, subject.d, subject.length, subject.random) <= 1 - 1e-6 or subject.degree:
            return None
        return Hypothesis(softmax_r2(subject.call, subject.held, subject.random), certain=True)
    except (UnderhoodError, np.linalg.LinAlgError):
        return None


def is_delta_rule(subject: Subject) -> Hypothesis | None:
    """The rule that its own products tell, run on longer sequences."""
    try:
        return Hypothesis(delta_rule_r2(subject.call, subject.d, subject.length // 2, subject.random))
    except (UnderhoodError, np.linalg.LinAlgError):
        return None


def is_memoryless(subject: Subject) -> Hypothesis | None:
    """f of another past and the same input."""
    return Hypothesis(memoryless_r2(subject.call, subject.held, subject.random))


Test = Callable[[Subject], Hypothesis | None]


def by_regression(make: regression.Features) -> Test:
    """A linear regression on features."""
    return lambda subject: Hypothesis(explained(make, subject.fit, subject.held))
