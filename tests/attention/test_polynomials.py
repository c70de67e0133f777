"""Polynomials for e^z: the known table, ε against exact arithmetic, and what they are compared with."""

import math
from fractions import Fraction

import numpy as np
import pytest

import underhood as uh
from underhood.attention.polynomials import lowest_degree

# (B, degree, best, Taylor): worked out by Lawson's reweighting, to the digits given.
TABLE = [
    (1, 2, 4.0e-2, 0.36),
    (1, 4, 5.0e-4, 1.9e-2),
    (1, 6, 3.0e-6, 4.8e-4),
    (1, 8, 1.1e-8, 6.8e-6),
    (2, 4, 1.4e-2, 1.5),
    (2, 6, 3.6e-4, 0.15),
    (2, 8, 5.0e-6, 8.7e-3),
    (2, 12, 3.0e-10, 8.5e-6),
    (4, 6, 3.3e-2, 120),
    (4, 8, 2.0e-3, 28),
    (4, 12, 2.0e-6, 0.46),
    (4, 16, 6.0e-10, 2.2e-3),
    (8, 8, 0.31, 6e5),
    (8, 12, 7.2e-3, 2e5),
    (8, 16, 4.1e-5, 1e4),
]


@pytest.mark.parametrize(("bound", "degree", "best", "taylor"), TABLE)
def test_table(bound, degree, best, taylor):
    assert uh.exponential(degree, bound).error == pytest.approx(best, rel=0.06)
    assert uh.exponential(degree, bound, "taylor").error == pytest.approx(taylor, rel=0.35)


def relative_error(polynomial, z):
    """|p(z)/e^z − 1| with forty digits: rational arithmetic and e^{−z} as a series."""
    z = Fraction(z)
    value = sum(Fraction(a) * z**n for n, a in enumerate(polynomial.coefficients))
    inverse = 1 / sum(abs(z) ** n / math.factorial(n) for n in range(90)) if z > 0 else None
    inverse = inverse if inverse is not None else sum((-z) ** n / math.factorial(n) for n in range(90))
    return float(abs(value * inverse - 1))


@pytest.mark.parametrize("family", ["best", "taylor", "squared"])
@pytest.mark.parametrize(("degree", "bound"), [(2, 0.3), (6, 1.0), (10, 2.0), (16, 6.5), (24, 8.0)])
def test_error_is_a_bound_and_met(family, degree, bound):
    polynomial = uh.exponential(degree, bound, family)
    zs = bound * np.cos(np.linspace(0, np.pi, 8 * degree + 1))
    seen = max(relative_error(polynomial, z) for z in zs)
    assert seen <= polynomial.error
    assert polynomial.error <= 1.3 * seen + 1e-13 * math.exp(2 * bound)


@pytest.mark.parametrize(("degree", "bound"), [(1, 0.5), (4, 2.0), (7, 3.0), (12, 4.0)])
def test_no_polynomial_is_better(degree, bound):
    """De la Vallée Poussin: an error that alternates n + 2 times is at least its least height for every polynomial."""
    polynomial = uh.exponential(degree, bound)
    zs = np.linspace(-bound, bound, 20001)
    errors = polynomial(zs) * np.exp(-zs) - 1
    runs = np.split(errors, np.flatnonzero(np.diff(np.sign(errors))) + 1)
    heights = [np.max(np.abs(run)) for run in runs]
    assert len(heights) >= degree + 2
    assert min(sorted(heights)[-(degree + 2) :]) >= 0.999 * polynomial.error


def test_a_moved_coefficient_is_worse():
    """Negative control of the one above."""
    best = uh.exponential(4, 2.0)
    zs = np.linspace(-2, 2, 4001)
    for n in range(5):
        moved = np.array(best.coefficients)
        moved[n] *= 1.01
        errors = np.polynomial.polynomial.polyval(zs, moved) * np.exp(-zs) - 1
        assert np.max(np.abs(errors)) > 1.01 * best.error


@pytest.mark.parametrize("family", ["best", "squared"])
@pytest.mark.parametrize(("degree", "bound"), [(8, 8.0), (2, 1.0), (6, 4.0)])
def test_positive(family, degree, bound):
    polynomial = uh.exponential(degree, bound, family)
    assert polynomial.error < 1
    assert np.min(polynomial(np.linspace(-bound, bound, 9999))) > 0


def test_squares_are_positive_everywhere():
    assert np.min(uh.exponential(6, 1.0, "squared")(np.linspace(-50, 50, 9999))) >= 0
    assert np.min(uh.exponential(5, 1.0)(np.linspace(-50, 50, 9999))) < 0


def test_lowest_degree():
    found = lowest_degree(2.0, 1e-6)
    assert found.error <= 1e-6 < uh.exponential(found.degree - 1, 2.0).error
    assert lowest_degree(10.0, 1e-12) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((41, 1.0), "a degree from 0 to 40; got 41"),
        ((-1, 1.0), "a degree from 0"),
        ((4, 0.0), "0 < B"),
        ((4, float("nan")), "got nan"),
        ((4, 11.0), "B ≤ 10"),
        ((3, 1.0, "squared"), "even degree"),
    ],
)
def test_refusals(arguments, says):
    with pytest.raises(uh.UnderhoodError, match=says):
        uh.exponential(*arguments)
