"""How large signals can get for inputs within ±r over T steps, and the rounding that scales are chosen against."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import decayed_length

TINY = {np.dtype(np.float64): 2.0**-30, np.dtype(np.float32): 2.0**-15}


class Typical(NamedTuple):
    """What rounding does to inputs that vary: errors of either sign, which grow as the root of their number.

    Relative errors of one product of a gate and a value, and of a sum over the horizon. Scales are chosen against it;
    bounds are derived in `rounding.py`.
    """

    unit: float
    step: float
    summing: float
    steps: float

    def around(self, bias: float) -> Typical:
        """For gates σ(b + u) with large |b|: the argument rounds by |b| times the unit, and σ with it."""
        return self._replace(step=self.step * (1 + abs(bias)))


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Inputs within ±`input_bound`, at most `horizon` steps, computed in `dtype`."""

    input_bound: float
    horizon: int
    dtype: np.dtype

    @property
    def roundoff(self) -> float:
        return float(np.finfo(self.dtype).eps) / 2

    @property
    def tiny(self) -> float:
        """An argument at which tanh is linear to better than rounding; scales are free in floating point."""
        return TINY[self.dtype]

    def linear(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """max |row · x|."""
        return self.input_bound * np.abs(rows).sum(axis=1)

    def affine(self, rows: Float[np.ndarray, "n inputs"]) -> Float[np.ndarray, " n"]:
        """max |row · (x, 1)|."""
        return self.linear(rows[:, :-1]) + np.abs(rows[:, -1])

    def steps(self, lambda_: Float[np.ndarray, "*n"] | float) -> Float[np.ndarray, "*n"]:
        """Σ_{s<T} λ^s: how many inputs a neuron can add up."""
        return decayed_length(lambda_, self.horizon)

    @property
    def typical(self) -> Typical:
        """What rounding does to inputs that vary."""
        unit, steps = self.roundoff, float(self.horizon)
        return Typical(unit, step=unit, summing=unit * math.sqrt(steps / 12 + 1), steps=steps)


def power_of_two(value: float | np.ndarray) -> np.ndarray:
    """The power of two at or below: scaling by it is exact."""
    return np.exp2(np.floor(np.log2(value)))


def positive(bounds: np.ndarray) -> np.ndarray:
    """Bounds to divide by: a signal that is always zero may have any."""
    return np.where(bounds > 0, bounds, 1.0)
