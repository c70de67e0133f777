"""Linear gates out of σ: copies of a neuron at several scales, combined so that the odd terms cancel.

    z ≈ Z Σ_k c_k [σ(b + k ε z/Z) − σ(b − k ε z/Z)] / (2 ε σ'(b)),   k = 1 … order,   |z| ≤ Z

The coefficients of central differences (Σ c_k k = 1, Σ c_k k^{2j+1} = 0 for 0 < j < order) leave a relative
error of order ε^{2·order}. At b = 0, σ − ½ is odd already: one copy at −ε is enough to take away the ½ that all
copies share, and order + 1 copies do (`centred`). At b → −∞, σ(b + u) → σ(b) eᵘ: 2·order (`exponential`).

What the copies have in common cancels: rounding grows by 1/ε. `best_scale` balances the two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
from jaxtyping import Float


@cache
def central_coefficients(order: int) -> tuple[Fraction, ...]:
    """c_1 … c_order with Σ c_k k = 1 and Σ c_k k^{2j+1} = 0 for 0 < j < order, exactly."""
    coefficients = []
    for k in range(1, order + 1):
        others = [j for j in range(1, order + 1) if j != k]
        # Lagrange's polynomial in k², taken at 0: the weight of f(k z)/k in the value at z → 0.
        weight = math.prod((Fraction(j * j, j * j - k * k) for j in others), start=Fraction(1))
        coefficients.append(weight / k)
    return tuple(coefficients)


@cache
def _tanh_half_series(terms: int) -> tuple[float, ...]:
    """|a_j| of 2 tanh(u/2) = Σ a_j u^{2j+1}: 4 (2^{2j+2} − 1) |B_{2j+2}| / (2j+2)!."""
    bernoulli = [Fraction(1)]
    for n in range(1, 2 * terms + 3):
        total = sum((Fraction(math.comb(n + 1, k)) * bernoulli[k] for k in range(n)), start=Fraction(0))
        bernoulli.append(-total / (n + 1))
    return tuple(
        float(4 * (4 ** (j + 1) - 1) * abs(bernoulli[2 * j + 2]) / math.factorial(2 * j + 2)) for j in range(terms)
    )


@cache
def _sinh_series(terms: int) -> tuple[float, ...]:
    """a_j of sinh(u) = Σ a_j u^{2j+1}."""
    return tuple(1 / math.factorial(2 * j + 1) for j in range(terms))


@cache
def _odd_majorant(terms: int) -> tuple[float, ...]:
    """Bounds on |a_j| of [σ(β + u) − σ(β − u)]/2σ'(β) = Σ a_j u^{2j+1}, for any β.

    With s = σ(β)(1 − σ(β)) ≤ ¼ that is sinh u/(1 + 2s (cosh u − 1)), whose series has no larger terms than that of
    sinh u/(1 − ½(cosh u − 1)), all of them positive.
    """
    sinh = [Fraction(1, math.factorial(2 * j + 1)) for j in range(terms)]
    terms_so_far: list[Fraction] = []
    for j in range(terms):
        carried = (terms_so_far[i] * Fraction(1, 2 * math.factorial(2 * (j - i))) for i in range(j))
        terms_so_far.append(sinh[j] + sum(carried, start=Fraction(0)))
    return tuple(map(float, terms_so_far))


@dataclasses.dataclass(frozen=True)
class Linearisation:
    """Copies of a gate: argument `nodes[c]`·z/Z, weights `weights[c]`, such that z ≈ Z Σ weights·gate."""

    order: int
    scale: float  # ε
    nodes: Float[np.ndarray, " copies"]
    weights: Float[np.ndarray, " copies"]
    truncation: float  # largest relative error of the linear part on |z| ≤ Z
    amplification: float  # Σ |weight · gate|: what rounding errors of the gates can grow by, against Z
    noise: float  # √Σ (weight · gate)²: what they do grow by, being independent

    @property
    def copies(self) -> int:
        return len(self.nodes)

    def leaking(self, gate: float, steps: float) -> Linearisation:
        """The same where a gate that is nearly shut lets a part δ of a sum leak away at each of `steps` later ones.

        The loss of a term is δe^u (1 − e^{−W}), W ≤ n δe^u after n steps; the odd part of that in u is at most its
        slope, 2n δ² e^{2u}. Of a sum over T steps, n is (T − 1)/2 on average.
        """
        odd = float(np.abs(self.nodes) @ np.abs(self.weights)) * gate
        lost = 2.1 * odd * steps * gate * math.exp(2 * self.order * self.scale)
        return dataclasses.replace(self, truncation=self.truncation + lost)

    @property
    def gain(self) -> float:
        """Σ |weight · node|/4: what relative errors of the arguments grow by, where gates are around ½."""
        return float(np.abs(self.nodes) @ np.abs(self.weights)) / 4


def centred(order: int, scale: float) -> Linearisation:
    """Gates around σ(0) = ½, at −1, 1, 2 … order times ε."""
    first, *others = 4 * np.array([float(c) for c in central_coefficients(order)]) / scale
    # w₋₁ + w₁ + Σ others = 0 takes the ½ away; w₁ − w₋₁ = c₁ because the rest is odd.
    weights = np.array([-(first + sum(others)) / 2, (first - sum(others)) / 2, *others])
    nodes = scale * np.array([-1.0, *range(1, order + 1)])
    truncation = _truncation(_tanh_half_series, order, scale)
    return _linearisation(order, scale, nodes, weights, truncation, gate=0.5)


def paired(order: int, scale: float) -> Linearisation:
    """Gates around ½ at ±1 … ±order times ε. Even terms cancel: around any other σ(β), too, with the slope there."""
    half = 2 * np.array([float(c) for c in central_coefficients(order)]) / scale
    steps = np.arange(1, order + 1)
    nodes, weights = scale * np.concatenate([steps, -steps]), np.concatenate([half, -half])
    return _linearisation(order, scale, nodes, weights, _truncation(_odd_majorant, order, scale), gate=0.5)


def exponential(order: int, scale: float, gate: float) -> Linearisation:
    """Gates around σ(b) = `gate` ≪ 1, where σ(b + u) ≈ gate · eᵘ, at ±1 … ±order times ε."""
    half = np.array([float(c) for c in central_coefficients(order)]) / (2 * scale * gate * (1 - gate))
    steps = np.arange(1, order + 1)
    largest = gate * math.exp(order * scale)
    nodes, weights = scale * np.concatenate([steps, -steps]), np.concatenate([half, -half])
    # σ(b+u) = δ eᵘ/(1 + δ (eᵘ − 1)): off by a part δ (e^|u| − 1) of δ eᵘ, and the weights by δ.
    bent = float(np.sum(np.abs(weights))) * largest * gate * math.expm1(order * scale) + 2 * gate
    truncation = _truncation(_sinh_series, order, scale) + bent
    return _linearisation(order, scale, nodes, weights, truncation, gate=largest)


def _linearisation(
    order: int, scale: float, nodes: np.ndarray, weights: np.ndarray, truncation: float, gate: float
) -> Linearisation:
    sizes = gate * np.abs(weights)
    return Linearisation(order, scale, nodes, weights, truncation, float(sizes.sum()), float(np.linalg.norm(sizes)))


def _truncation(series: Callable[[int], tuple[float, ...]], order: int, scale: float) -> float:
    """Σ_{j ≥ order} |a_j| ε^{2j} |Σ_k c_k k^{2j+1}|: the terms that are left, each by its absolute value."""
    terms = order + 20
    left = 0.0
    for j, a in enumerate(series(terms)):
        if j >= order:
            moment = sum((c * k ** (2 * j + 1) for k, c in enumerate(central_coefficients(order), 1)), Fraction(0))
            left += a * scale ** (2 * j) * abs(float(moment))
    return left * (1 + 1e-9)  # what follows: each term is at most a third of the one before, at (order ε)² ≤ 1


SCALES = tuple(2.0**-power for power in range(1, 40))  # powers of two: scaling by them is exact


def best_scale(scheme: Callable[[float], Linearisation], error: Callable[[Linearisation], float]) -> Linearisation:
    """The scheme with the least `error`, among scales where the series converge well inside their radius."""
    schemes = (scheme(scale) for scale in SCALES)
    return min((each for each in schemes if each.order * each.scale <= 1), key=error)
