"""Linear gates: the coefficients exactly, the truncation against arithmetic in 50 digits."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from underhood.compiler.linearise import best_scale, central_coefficients, centred, exponential

mpmath.mp.dps = 50
ORDERS = (1, 2, 3, 4)


def sigmoid(z):
    return 1 / (1 + mpmath.exp(-z))


def deviation(scheme, bias, z):
    """Relative error of Z Σ weights·σ(b + node z), z in units of Z, with the weights taken to 50 digits."""
    scale = mpmath.mpf(scheme.scale)
    factor = 4 if bias == 0 else 1 / (sigmoid(bias) * (1 - sigmoid(bias)))
    total = mpmath.mpf(0)
    for k, c in enumerate(central_coefficients(scheme.order), 1):
        weight = mpmath.mpf(c.numerator) / c.denominator * factor / (2 * scale)
        total += weight * (sigmoid(bias + k * scale * z) - sigmoid(bias - k * scale * z))
    return abs(total / z - 1)


@pytest.mark.parametrize("order", ORDERS)
def test_coefficients_cancel_exactly(order):
    coefficients = central_coefficients(order)
    for power in range(1, 2 * order, 2):
        assert sum(c * k**power for k, c in enumerate(coefficients, 1)) == Fraction(power == 1)
    assert sum(c * k ** (2 * order + 1) for k, c in enumerate(coefficients, 1)) != 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [2.0**-2, 2.0**-5, 2.0**-9])
def test_truncation_is_a_bound_and_a_close_one(order, scale):
    if order * scale > 1:
        scale = 2.0**-3
    bias = -60 * mpmath.log(2)
    gate = float(sigmoid(bias))
    for scheme, at in ((centred(order, scale), mpmath.mpf(0)), (exponential(order, scale, gate), bias)):
        at_the_end = deviation(scheme, at, mpmath.mpf(1))
        inside = max(deviation(scheme, at, mpmath.mpf(z)) for z in (0.1, 0.5, 0.9, -0.7))
        assert inside <= at_the_end <= scheme.truncation
        # What the gate bends is bounded by absolute values: at most 2ᵒʳᵈᵉʳ times its even part.
        assert scheme.truncation <= 3 * at_the_end + 4 ** (order + 1) * gate


@pytest.mark.parametrize("order", ORDERS)
def test_weights_remove_what_the_copies_share(order):
    for scheme in (centred(order, 2.0**-4), exponential(order, 2.0**-4, 2.0**-60)):
        assert len(scheme.nodes) == len(scheme.weights) == scheme.copies
        assert abs(scheme.weights.sum()) <= 1e-12 * np.abs(scheme.weights).sum()
        assert scheme.noise <= scheme.amplification
    assert centred(order, 0.1).copies == order + 1
    assert exponential(order, 0.1, 1e-18).copies == 2 * order


def test_the_scale_balances_truncation_and_rounding():
    scheme = best_scale(lambda scale: centred(1, scale), lambda one: one.truncation + 1e-16 * one.amplification)
    either_side = [centred(1, scheme.scale * factor) for factor in (0.5, 2)]
    assert all(
        one.truncation + 1e-16 * one.amplification >= scheme.truncation + 1e-16 * scheme.amplification
        for one in either_side
    )
    assert best_scale(lambda scale: centred(1, scale), lambda one: one.truncation).scale == 2.0**-39
