"""Running error analysis: every signal with its largest size, and how far the computed one may be from the one meant.

    fl(a ∘ b) = (a ∘ b)(1 + η) + ζ,   |η| ≤ u, |ζ| ≤ the smallest normal number (which covers underflow to zero)
    fl(Σ_{i≤n} w_i x_i) is off by at most γ_n Σ |w_i x_i|,   γ_n = n u/(1 − n u), in whatever order it is added up

Every function takes errors in, adds its own, and assumes nothing of their signs. Three assumptions are left, which
tests/compiler/test_bounds.py looks at: elementary functions are within `ELEMENTARY` units of what they should be;
equal rows of a product of matrices X Wᵀ, as equal numbers in such a function, come out equal; and a sum over time is
a chain of additions, or chunks of 32 (layers/memory.py). Where a construction cancels what signals have in common,
their size is known to be smaller than a sum of absolute values: it is then given.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope

ELEMENTARY = 8.0  # units u by which σ, tanh, exp, softplus, SiLU or GELU may be off: four in the last place
WEIGHT = 4  # roundings of a weight: two products when it is made, its cast, and its product with the signal
CHUNK = 32  # steps that a matrix memory adds up at once

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Signal:
    """|meant| ≤ size, |computed − meant| ≤ error."""

    size: Float[Array, "*n"]
    error: Float[Array, "*n"]

    @property
    def reach(self) -> Float[Array, "*n"]:
        """|computed|."""
        return self.size + self.error

    def __getitem__(self, which: Any) -> Signal:
        return Signal(self.size[which], self.error[which])

    def known(self, size: Float[Array, "*n"]) -> Signal:
        """The same signal where a better bound on its size is known."""
        return Signal(np.minimum(self.size, size), self.error)

    def off(self, relative: float | Array) -> Signal:
        """What a limit leaves: the signal meant is another, by so much of its size."""
        return Signal(self.size, self.error + relative * self.size)

    def scaled(self, factors: float | Array) -> Signal:
        """Times powers of two."""
        return Signal(self.size * np.abs(factors), self.error * np.abs(factors))


def join(*signals: Signal) -> Signal:
    return Signal(np.concatenate([s.size for s in signals]), np.concatenate([s.error for s in signals]))


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The operations of a network in the dtype of an envelope."""

    envelope: Envelope

    @property
    def unit(self) -> float:
        return self.envelope.roundoff

    @property
    def least(self) -> float:
        """The smallest normal number."""
        return float(np.finfo(self.envelope.dtype).tiny)

    def gamma(self, count: Any) -> Any:
        """γ_n; infinite where n u reaches 1."""
        share = np.asarray(count, np.float64) * self.unit
        return np.where(share < 1, share / np.where(share < 1, 1 - share, 1.0), np.inf)

    def inputs(self, d: int) -> Signal:
        """x, which float32 rounds."""
        size = np.full(d, self.envelope.input_bound)
        return Signal(size, size * self.cast + (self.least if self.cast else 0.0))

    @property
    def cast(self) -> float:
        """What rounding a float64 number to the dtype does to it."""
        return self.unit if self.envelope.dtype != np.float64 else 0.0

    def with_one(self, signal: Signal) -> Signal:
        return join(signal, Signal(np.ones(1), np.zeros(1)))

    def linear(self, weight: Array, signal: Signal, size: Array | None = None) -> Signal:
        """W x: zeros of W add nothing and round nothing."""
        weight = np.abs(weight)
        there = weight != 0
        count = np.count_nonzero(there, axis=1)
        reached = weight @ signal.reach
        underflow = self.least * (count + there @ signal.reach)
        error = weight @ signal.error + self.gamma(count + WEIGHT) * reached + underflow
        meant = weight @ signal.size
        return Signal(meant if size is None else np.minimum(meant, size), error)

    def again(self, signal: Signal, times: int = 2 * WEIGHT) -> Signal:
        """Handed on through weights of 1, or scaled: so many more roundings."""
        return Signal(signal.size, signal.error + self.gamma(times) * signal.reach + self.least)

    def times(self, first: Signal, other: Signal) -> Signal:
        """Two signals multiplied entry by entry."""
        error = first.size * other.error + first.error * other.reach
        return Signal(first.size * other.size, error + self.unit * first.reach * other.reach + self.least)

    def sigma(self, argument: Signal, bias: float | Array = 0.0) -> Signal:
        """σ(b + z): at most σ(b + |z|), with slope at most that, and ¼; b rounds by a part of itself."""
        size = _sigma(bias + argument.size)
        moved = argument.error + 2 * self.unit * (np.abs(bias) + argument.reach)
        slope = np.minimum(0.25, _sigma(bias + argument.reach + moved))
        return Signal(size, slope * moved + ELEMENTARY * self.unit * _sigma(bias + argument.reach + moved) + self.least)

    def tanh(self, argument: Signal) -> Signal:
        """tanh(z), meant as z: it is less by |z|³/3 at most."""
        error = argument.error + argument.reach**3 / 3 + ELEMENTARY * self.unit * argument.reach
        return Signal(argument.size, error + self.least)

    def activation(self, argument: Signal, size: Array, slope: float) -> Signal:
        """An activation of at most this size and slope, such as SiLU: |f| ≤ |z|, |f′| ≤ 1.1."""
        error = slope * argument.error + ELEMENTARY * self.unit * (size + slope * argument.error)
        return Signal(size, error + self.least)

    def total(self, inputs: Signal, lambda_: Any, alike: bool = False) -> Signal:
        """h_t = λ h_{t-1} + p_t up to the horizon: errors of p, of λ, and of each step.

        Where copies have a λ `alike`, its error counts once, for what is made of them: `decaying`.
        """
        steps, relative = self.envelope.steps(lambda_), self.summing(lambda_, alike)
        error = inputs.error * steps * (1 + relative) + inputs.size * steps * relative
        return Signal(inputs.size * steps, error + 2 * self.least * steps)

    def decaying(self, lambda_: Any) -> Any:
        """The part of `summing` that comes of λ itself."""
        return self.summing(lambda_) - self.summing(lambda_, alike=True)

    def summing(self, lambda_: Any, alike: bool = False) -> Any:
        """Error of Σ λ^s p_{t-s}, over P Σ λ^s.

        λ = 1: each step rounds a sum of up to s P, u Σ s P = u T(T + 1)/2 P. Else a product and a sum, of up to S P
        each, and |Σ λ̂^s − λ^s| ≤ ρ S min((T − 1)/2, 1/(1 − λ)) for λ̂ = λ(1 ± ρ): the mean of s under weights λ^s.
        """
        lambda_, horizon = np.asarray(lambda_, np.float64), float(self.envelope.horizon)
        perfect = self.gamma((horizon + 1) / 2)
        share = np.zeros_like(lambda_) if alike else self._decay(lambda_)
        most = lambda_ * (1 + share)
        grown = np.exp(np.minimum(horizon * np.maximum(np.log(np.maximum(most, 1e-300)), 0.0), 700.0))
        mean = np.minimum((horizon - 1) / 2, grown / np.maximum(1 - most, self.unit))
        each = 2 * self.unit * np.minimum(self.envelope.steps(np.minimum(most, 1.0)), horizon)
        inner = (1 + each * grown) * (1 + share * mean * grown) - 1 + (grown - 1)
        return np.where(lambda_ == 1, perfect, np.where(lambda_ == 0, self.unit, inner))

    def _decay(self, lambda_: Any) -> Any:
        """ρ of λ̂ = λ (1 ± ρ), computed as exp(−e^A), σ(b), σ(b)^{1/16}, exp(−e^A Δ), or a power of them in a chunk.

        With a = −log λ: weights of size |A| ≤ |log a| + 5 and |b| round by u of themselves, and so the exponent by
        a (|A| + …) u; exp and its relatives add their own.
        """
        inner = np.clip(lambda_, 1e-300, 1 - 2.0**-53)
        exponent = -np.log(inner)
        parameters = 3 * (np.abs(np.log(exponent)) + 5) + np.abs(logit(inner)) + 2 * ELEMENTARY + CHUNK + 1
        return self.unit * (2 * ELEMENTARY + exponent * parameters)


def _sigma(z: Any) -> Array:
    return np.exp(-np.logaddexp(0.0, -np.asarray(z, np.float64)))
