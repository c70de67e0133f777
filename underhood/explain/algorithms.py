"""What a network may do in context to predict y at a new x: algorithms in NumPy, each with the loss it costs.

With A = Σ_t x_t x_tᵀ and B = Σ_t y_t x_tᵀ over T observations, and the prediction ŷ = W x:

    gradient-step            W = η B
    delta-rule               W_t = W_{t-1} + β (y_t − W_{t-1} x_t) x_tᵀ
    kaczmarz                 the same with β = 1/|x_t|²
    least-squares            W = B (A + ridge I)^{-1}
    decayed-gradient-step    W = η Σ_t γ^{T-t} y_t x_tᵀ
    k-gradient-steps         W_j = W_{j-1} + η (B − W_{j-1} A), k times from W_0 = 0

Each is a record of its rule, its fit, its loss in closed form and the network that runs it. It is fitted to
predictions, a network's or the right ones. All are linear in y: with ŷ − y = W* (M − I) x, the loss is ½ σ_W² E‖M −
I‖², which is exact where M has moments of order four at most (docs/discovery.md).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from underhood.algebra.quadratic import Array
from underhood.compiler.algorithms import algorithm_network
from underhood.core.model import AbstractModel
from underhood.training.tasks.linear_regression import LinearRegression

Parameters = dict[str, int | float]

MOST_STEPS = 16  # of k-gradient-steps that are tried: beyond, one more step is hard to tell from a longer one


@dataclasses.dataclass(frozen=True)
class Observed:
    """What b sequences show: observations (x_t, y_t), and the x to predict at."""

    x: Float[Array, "b t d_x"]
    y: Float[Array, "b t d_y"]
    query: Float[Array, "b d_x"]

    @classmethod
    def of(cls, xs: Float[Array, "b steps d"], d_x: int) -> Observed:
        """From sequences (x_1, y_1) … (x_T, y_T), (x, 0)."""
        return cls(xs[:, :-1, :d_x], xs[:, :-1, d_x:], xs[:, -1, :d_x])

    @cached_property
    def terms(self) -> Float[Array, "b t d_y"]:
        """y_t (x_t · x): what each observation adds to a gradient step."""
        return self.y * np.einsum("bti,bi->bt", self.x, self.query)[:, :, None]

    @cached_property
    def spectrum(self) -> tuple[Float[Array, "b d_x"], Float[Array, "b d_y d_x"]]:
        """Eigenvalues a_i of A, and p_i with B f(A) x = Σ_i f(a_i) p_i for every function f."""
        transposed = self.x.transpose(0, 2, 1)
        values, vectors = np.linalg.eigh(transposed @ self.x)
        asked = np.einsum("bij,bi->bj", vectors, self.query)
        return np.maximum(values, 0.0), (self.y.transpose(0, 2, 1) @ self.x @ vectors) * asked[:, None]

    def filtered(self, response: Float[Array, "b d_x"]) -> Float[Array, "b d_y"]:
        """B f(A) x from f(a_i)."""
        return np.einsum("byi,bi->by", self.spectrum[1], response)


@dataclasses.dataclass(frozen=True)
class Rule(ABC):
    """An algorithm with its parameters."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        """Its predictions."""

    @classmethod
    @abstractmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> Rule:
        """With the parameters whose predictions are nearest to those wanted."""

    def tuned(self, seen: Observed, wanted: Float[Array, "b d_y"], task: LinearRegression) -> Rule:
        """The same algorithm at its best on a task; what is a matter of cost, k, stays."""
        return self.fitted(seen, wanted)

    def loss(self, task: LinearRegression, *, validation: bool = False) -> float | None:
        """½ σ_W² E‖M − I‖², where there is a closed form."""
        return None

    @property
    def parameters(self) -> Parameters:
        """By name."""
        return dataclasses.asdict(self)

    def compiled(self, to: str, d_x: int, d_y: int) -> AbstractModel:
        """The algorithm with these parameters as a recurrent network, where a construction is known."""
        return algorithm_network(self.name, to=to, d_x=d_x, d_y=d_y, **cast(dict[str, Any], self.parameters))

    def network(self, d_x: int) -> Callable[[Float[Array, "... steps d"]], Float[Array, "... steps d_y"]]:
        """As a network of (x, y): at each step the prediction at its x from what came before."""

        def call(xs: Float[Array, "... steps d"]) -> Float[Array, "... steps d_y"]:
            batch = np.asarray(xs, np.float64).reshape(-1, *np.shape(xs)[-2:])
            steps = [np.zeros((len(batch), batch.shape[2] - d_x))]
            steps += [self(Observed.of(batch[:, : t + 1], d_x)) for t in range(1, batch.shape[1])]
            return np.stack(steps, axis=1).reshape(*np.shape(xs)[:-1], -1)

        return call


@dataclasses.dataclass(frozen=True)
class GradientStep(Rule):
    name: ClassVar[str] = "gradient-step"
    eta: float

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        return self.eta * seen.terms.sum(axis=1)

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> GradientStep:
        step = seen.terms.sum(axis=1)
        return cls(max(0.0, float(np.vdot(step, wanted) / _positive(np.vdot(step, step)))))

    def tuned(self, seen: Observed, wanted: Float[Array, "b d_y"], task: LinearRegression) -> Rule:
        return GradientStep(task.optimal_eta)

    def loss(self, task: LinearRegression, *, validation: bool = False) -> float | None:
        return task.gradient_descent_loss(self.eta, validation=validation)


@dataclasses.dataclass(frozen=True)
class DeltaRule(Rule):
    name: ClassVar[str] = "delta-rule"
    beta: float

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        return _online(seen, np.full(seen.x.shape[:2], self.beta))

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> DeltaRule:
        def missed(beta: float) -> float:
            return _missed(cls(beta)(seen), wanted)

        return cls(_least(missed, np.logspace(-4, 0.5, 48) / seen.x.shape[2]))

    def tuned(self, seen: Observed, wanted: Float[Array, "b d_y"], task: LinearRegression) -> Rule:
        return DeltaRule(1 / task.fourth_moment)

    def loss(self, task: LinearRegression, *, validation: bool = False) -> float | None:
        """Every observation takes the share (1 − 2β + β² m₄) of ‖M − I‖²."""
        if task.noise:
            return None
        left = 1 - 2 * self.beta + self.beta**2 * task.fourth_moment
        return 0.5 * task.w_variance(validation=validation) * task.d_x * left**task.examples


@dataclasses.dataclass(frozen=True)
class Kaczmarz(Rule):
    name: ClassVar[str] = "kaczmarz"

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        lengths = np.sum(seen.x**2, axis=2)
        return _online(seen, np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0))

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> Kaczmarz:
        return cls()

    def loss(self, task: LinearRegression, *, validation: bool = False) -> float | None:
        """Every observation takes one direction of d_x."""
        if task.noise:
            return None
        return 0.5 * task.w_variance(validation=validation) * task.d_x * (1 - 1 / task.d_x) ** task.examples


@dataclasses.dataclass(frozen=True)
class LeastSquares(Rule):
    name: ClassVar[str] = "least-squares"
    ridge: float

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        return seen.filtered(1 / (seen.spectrum[0] + self.ridge))

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> LeastSquares:
        def missed(ridge: float) -> float:
            return _missed(cls(ridge)(seen), wanted)

        return cls(_least(missed, np.logspace(-10, 6, 128) * _positive(seen.spectrum[0].mean())))


@dataclasses.dataclass(frozen=True)
class DecayedGradientStep(Rule):
    name: ClassVar[str] = "decayed-gradient-step"
    eta: float
    decay: float

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        return self.eta * np.einsum("t,bty->by", _powers(self.decay, seen.x.shape[1]), seen.terms)

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> DecayedGradientStep:
        """η is best at w·c / wᵀG w with w = (γ^{T-t}), where it explains (w·c)² / wᵀG w of the predictions."""
        observations = seen.x.shape[1]
        terms = seen.terms.transpose(1, 0, 2).reshape(observations, -1)
        gram, likeness = terms @ terms.T, terms @ wanted.reshape(-1)

        def step(decay: float) -> tuple[float, float]:
            weights = _powers(decay, observations)
            along, length = max(0.0, float(weights @ likeness)), _positive(float(weights @ gram @ weights))
            return along / length, -(along**2) / length

        decay = _least(lambda decay: step(decay)[1], np.linspace(0, 1, 101))
        return cls(step(decay)[0], decay)

    def tuned(self, seen: Observed, wanted: Float[Array, "b d_y"], task: LinearRegression) -> Rule:
        """For this decay: T becomes (Σ γⁿ)² / Σ γ²ⁿ."""
        weights = _powers(self.decay, task.examples)
        total, squares = weights.sum(), np.sum(weights**2)
        spread = total**2 + squares * (task.fourth_moment - 1 + task.d_x * task.noise**2)
        return DecayedGradientStep(float(total / spread), self.decay)

    def loss(self, task: LinearRegression, *, validation: bool = False) -> float | None:
        weights, variance = self.eta * _powers(self.decay, task.examples), task.w_variance(validation=validation)
        total, squares = float(weights.sum()), float(np.sum(weights**2))
        trace = task.d_x * ((1 - total) ** 2 + squares * (task.fourth_moment - 1))
        return 0.5 * variance * trace + 0.5 * squares * task.d_x * task.noise**2


@dataclasses.dataclass(frozen=True)
class KGradientSteps(Rule):
    name: ClassVar[str] = "k-gradient-steps"
    k: int
    eta: float

    def __call__(self, seen: Observed) -> Float[Array, "b d_y"]:
        values = seen.spectrum[0]
        response = np.zeros_like(values)
        for _ in range(self.k):
            response = response + self.eta * (1 - values * response)
        return seen.filtered(response)

    @classmethod
    def fitted(cls, seen: Observed, wanted: Float[Array, "b d_y"]) -> KGradientSteps:
        found = (cls._with(k, seen, wanted) for k in range(2, MOST_STEPS + 1))
        return min(found, key=lambda rule: _missed(rule(seen), wanted))

    @classmethod
    def _with(cls, k: int, seen: Observed, wanted: Float[Array, "b d_y"]) -> KGradientSteps:
        def missed(eta: float) -> float:
            return _missed(cls(k, eta)(seen), wanted)

        return cls(k, _least(missed, np.logspace(-3, 0.5, 64) / _positive(seen.spectrum[0][:, -1].mean())))

    def tuned(self, seen: Observed, wanted: Float[Array, "b d_y"], task: LinearRegression) -> Rule:
        return self._with(self.k, seen, wanted)


# The simpler ones first: where two say the same of a network, the first gives the name. So a gradient step is no
# decayed one with γ = 1, and on the sphere, where the two are one, a delta rule with β = 1/d_x is not called Kaczmarz.
RULES: tuple[type[Rule], ...] = (
    GradientStep,
    DeltaRule,
    Kaczmarz,
    LeastSquares,
    DecayedGradientStep,
    KGradientSteps,
)


def _online(seen: Observed, rates: Float[Array, "b t"]) -> Float[Array, "b d_y"]:
    """W ← W + rate (y − W x) xᵀ, observation by observation."""
    weights = np.zeros((len(seen.x), seen.y.shape[2], seen.x.shape[2]))
    for t in range(seen.x.shape[1]):
        x = seen.x[:, t, None]
        missed = seen.y[:, t] - np.sum(weights * x, axis=2)
        weights += (rates[:, t, None] * missed)[:, :, None] * x
    return np.sum(weights * seen.query[:, None], axis=2)


def _powers(decay: float, observations: int) -> Float[Array, " t"]:
    """γ^{T-1} … γ, 1: the last observation counts in full."""
    return decay ** np.arange(observations - 1, -1, -1.0)


def _missed(predicted: Float[Array, "b d_y"], wanted: Float[Array, "b d_y"]) -> float:
    return float(np.sum((predicted - wanted) ** 2))


def _least(function: Callable[[float], float], grid: Float[Array, " n"]) -> float:
    """Where a function is least: the best point of a grid, then between its neighbours."""
    values = [function(float(point)) for point in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(
        function, bounds=(float(low), float(high)), method="bounded", options={"xatol": 1e-9 * high}
    )
    return float(found.x) if found.fun < values[best] else float(grid[best])


def _positive(number: float) -> float:
    """To divide by."""
    return float(number) or 1.0
