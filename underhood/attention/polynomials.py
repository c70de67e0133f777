"""p(z) ≈ e^z with |p(z)/e^z − 1| ≤ ε for |z| ≤ B: the polynomials with which softmax becomes a finite state.

The best one in relative error is found by Remez's exchange: e^{−z} T_0, …, e^{−z} T_n is a Chebyshev system, so that
the best error alternates n + 2 times. ε is certified for the rounded coefficients of 1, z, z², … that are handed out:

    g(x) = p(Bx) e^{−Bx} − 1 is entire. Cut off after N Chebyshev terms, it is a polynomial, and at most its largest
    value at M Chebyshev points over cos(πN/2M) (Ehlich and Zeller); what is cut off is below 2G ρ^{−N}/(ρ − 1), G the
    size of g on Bernstein's ellipse of ρ. It is added, as is the rounding of the samples.

ε < 1 makes p positive on the whole interval, so that sums of weights can be divided by.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Literal

import numpy as np
from jaxtyping import Float

from underhood.core.errors import UnderhoodError

Family = Literal["best", "taylor", "squared"]

MOST_DEGREE = 40  # beyond it, coefficients of monomials in float64 are worth nothing
MOST_BOUND = 10.0
EXCHANGES = 60
REFINEMENTS = 3
LEVELLED = 1e-6  # of the error's alternating extremes: equal enough
GRID = 4001  # points on which the exchange looks for extremes
ELLIPSE = 4.0  # ρ
OVERSAMPLED = 100  # M/N: 1/cos(π/200) = 1.0001
LONG = float(np.finfo(np.longdouble).eps)


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """p(z) = Σ a_n zⁿ with |p(z)/e^z − 1| ≤ ε for |z| ≤ B."""

    coefficients: tuple[float, ...]
    """a_0, a_1, …"""
    bound: float
    """B."""
    error: float
    """ε, certified."""
    family: Family

    @property
    def degree(self) -> int:
        """n."""
        return len(self.coefficients) - 1

    def __call__(self, z: Float[np.ndarray, "*n"] | float) -> Float[np.ndarray, "*n"]:
        """p(z)."""
        return np.asarray(np.polynomial.polynomial.polyval(z, np.array(self.coefficients)))

    def absolute(self, z: float) -> float:
        """Σ |a_n| zⁿ: how large the terms are of which p(z) is the sum."""
        return float(np.polynomial.polynomial.polyval(z, np.abs(self.coefficients)))


@functools.lru_cache(maxsize=512)
def exponential(degree: int, bound: float | int, family: Family = "best") -> Polynomial:
    """The polynomial of this degree for scores within ±`bound`.

    **Arguments:**

    - `degree`: n.
    - `bound`: B.
    - `family`: `"best"` in relative error, `"taylor"`'s sum Σ zⁿ/n!, or `"squared"`, the best of degree n/2 at z/2,
        times itself.

    **Returns:** A `Polynomial`.
    """
    if not 0 <= degree <= MOST_DEGREE:
        raise UnderhoodError(f"expected a degree from 0 to {MOST_DEGREE}", degree)
    if not 0 < bound <= MOST_BOUND:
        raise UnderhoodError(f"expected scores within ±B, 0 < B ≤ {MOST_BOUND:g}", bound)
    bound = float(bound)
    if family == "taylor":
        coefficients = tuple(1 / math.factorial(n) for n in range(degree + 1))
    elif family == "squared":
        coefficients = _squared(degree, bound)
    else:
        coefficients = _monomials(_best(degree, bound), bound)
    return Polynomial(coefficients, bound, _certified(coefficients, bound), family)


def lowest_degree(bound: float | int, error: float) -> Polynomial | None:
    """The best polynomial of the lowest degree with ε ≤ `error`; None where no degree reaches it."""
    for degree in range(MOST_DEGREE + 1):
        polynomial = exponential(degree, bound)
        if polynomial.error <= error:
            return polynomial
    return None


def _squared(degree: int, bound: float) -> tuple[float, ...]:
    if degree % 2:
        raise UnderhoodError("expected an even degree of a square", degree)
    half = [Fraction(a) / 2**n for n, a in enumerate(_monomials(_best(degree // 2, bound / 2), bound / 2))]
    square = [Fraction(0)] * (degree + 1)
    for i, left in enumerate(half):
        for j, right in enumerate(half):
            square[i + j] += left * right
    return tuple(float(a) for a in square)


def _best(degree: int, bound: float) -> np.ndarray:
    """Chebyshev coefficients, in x = z/B, of the best polynomial in relative error, by exchange of n + 2 points."""
    pi, whole = np.longdouble(np.pi), np.arange(GRID, dtype=np.longdouble)
    points, grid = -np.cos(pi * whole[: degree + 2] / (degree + 1)), -np.cos(pi * whole / (GRID - 1))
    signs = (-1.0) ** np.arange(degree + 2)
    decay, least, best = np.exp(-bound * grid), np.inf, np.ones(1)
    for _ in range(EXCHANGES):
        weighted = np.polynomial.chebyshev.chebvander(points, degree) * np.exp(-bound * points)[:, None]
        solved = _solve(np.column_stack([weighted, signs]), np.ones(degree + 2, np.longdouble))
        coefficients, level = solved[:-1], abs(solved[-1])
        error = np.polynomial.chebyshev.chebval(grid, coefficients) * decay - 1
        points, largest = _alternating(grid, error, degree + 2)
        if largest < least:
            least, best = largest, coefficients
        if len(points) < degree + 2 or largest <= (1 + LEVELLED) * level:  # fewer than that are rounding
            break
    return best


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A x = b in extended precision: the residual of a solution, solved for again."""
    solution = np.zeros(len(right), np.longdouble)
    for _ in range(REFINEMENTS):
        solution = solution + np.linalg.solve(matrix.astype(np.float64), (right - matrix @ solution).astype(np.float64))
    return solution


def _alternating(grid: np.ndarray, error: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Where the error of each sign in turn is largest, of too many without those at one end or the other; its size."""
    starts = np.flatnonzero(np.diff(np.sign(error)) != 0) + 1
    runs = np.split(np.arange(len(grid)), starts)
    chosen = [run[np.argmax(np.abs(error[run]))] for run in runs]
    while len(chosen) > count:
        chosen.pop(0 if abs(error[chosen[0]]) < abs(error[chosen[-1]]) else -1)
    return grid[chosen], float(np.max(np.abs(error)))


def _monomials(chebyshev: np.ndarray, bound: float) -> tuple[float, ...]:
    """Σ c_j T_j(z/B) in powers of z, in exact arithmetic until the last rounding."""
    before, now = [Fraction(1)], [Fraction(0), Fraction(1)]
    total = [Fraction(0)] * len(chebyshev)
    for coefficient in chebyshev:
        for power, weight in enumerate(before):
            total[power] += _exact(coefficient) * weight
        after = [Fraction(0), *(2 * weight for weight in now)]
        before, now = now, [a - b for a, b in zip(after, [*before, 0, 0], strict=False)]
    return tuple(float(weight / Fraction(bound) ** power) for power, weight in enumerate(total))


def _exact(value: np.longdouble) -> Fraction:
    return Fraction(float(value)) + Fraction(float(value - np.longdouble(float(value))))


def certified_range(coefficients: Float[np.ndarray, " n"], bound: float) -> tuple[float, float]:
    """Bounds on Σ a_n zⁿ from below and above for |z| ≤ B: samples, and what a polynomial can do between them."""
    degree = max(len(coefficients) - 1, 1)
    count = OVERSAMPLED * degree
    z = np.longdouble(bound) * np.cos(np.pi * (np.arange(count, dtype=np.longdouble) + 0.5) / count)
    samples = np.polynomial.polynomial.polyval(z, np.asarray(coefficients, np.longdouble))
    middle, half = (float(np.max(samples) + np.min(samples)) / 2, float(np.max(samples) - np.min(samples)) / 2)
    rounding = 4 * degree * LONG * float(np.polynomial.polynomial.polyval(bound, np.abs(coefficients)))
    reach = (half + rounding) / math.cos(math.pi * degree / (2 * count))
    return middle - reach, middle + reach


def _certified(coefficients: tuple[float, ...], bound: float) -> float:
    """ε ≥ max |p(z) e^{−z} − 1| over |z| ≤ B, for these very coefficients."""
    absolute = np.abs(np.array(coefficients, np.longdouble))
    on_ellipse = bound * (ELLIPSE + 1 / ELLIPSE) / 2
    size = float(np.polynomial.polynomial.polyval(on_ellipse, absolute)) * math.exp(on_ellipse) + 1
    terms = len(coefficients) + math.ceil(math.log(size / (LONG * (ELLIPSE - 1))) / math.log(ELLIPSE))
    cut_off = 2 * size * ELLIPSE**-terms / (ELLIPSE - 1)
    count = OVERSAMPLED * terms
    z = np.longdouble(bound) * np.cos(np.pi * (np.arange(count, dtype=np.longdouble) + 0.5) / count)
    samples = np.polynomial.polynomial.polyval(z, np.array(coefficients, np.longdouble)) * np.exp(-z) - 1
    rounding = (
        4 * len(coefficients) * LONG * float(np.max(np.polynomial.polynomial.polyval(abs(z), absolute) * np.exp(-z)))
    )
    seen = float(np.max(np.abs(samples))) + rounding
    return float((seen + cut_off) / math.cos(math.pi * terms / (2 * count)) + cut_off)
