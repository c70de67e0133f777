"""Which algorithm does a network run in context? Fitted to its own predictions, and tested on fresh tasks.

Sequences are tasks (x_1, W*x_1) … (x_T, W*x_T), (x, 0); the network's prediction is the last d_y of its outputs at the
last step. Each algorithm of `algorithms` is fitted to the predictions, not to what is right, and R² is the share of the
predictions that it explains on tasks that neither has seen. Table 2 reads the same step off the weights of a gated RNN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array
from underhood.algebra.statistics import r_squared_interval
from underhood.core.display import Displayed, Summary
from underhood.core.errors import UnderhoodError
from underhood.core.foreign import as_function
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.decompiler.from_outputs.functions import Batched, as_numpy_function
from underhood.explain.algorithms import RULES, Observed, Parameters, Rule
from underhood.explain.elsewhere import Condition, Elsewhere, choose
from underhood.training.tasks.linear_regression import LinearRegression
from underhood.training.tasks.task import HELD_OUT, VALIDATION, draw

NONE = "none"
TASKS, FITTED, MONTE_CARLO = 4096, 1024, 5  # tasks of a draw; those to fit to; draws for what algorithms cost
LEAST_R2 = 0.99


@dataclass(frozen=True)
class Rung:
    """One algorithm beside the network."""

    name: str
    parameters: Parameters
    """Fitted to the network's predictions."""
    r2: float
    """Share of them that it explains on fresh tasks."""
    r2_interval: tuple[float, float]
    """Its 95 % interval."""
    loss: float | None
    """What it costs with these parameters, in closed form; None where there is none."""
    monte_carlo: float
    """The same, measured."""
    best_loss: float
    """What it costs with the best step size, decay and k kept: closed form where there is one."""


@dataclass(frozen=True, repr=False)
class Algorithm(Displayed):
    """What the network does in context, and how sure that is."""

    name: str
    """gradient-step, decayed-gradient-step, delta-rule, kaczmarz, k-gradient-steps, least-squares or none."""
    parameters: Parameters
    """Of the algorithm; empty where it is none."""
    r2: float
    """Share of the network's predictions that the algorithm, or the nearest one, explains on fresh tasks."""
    r2_interval: tuple[float, float]
    """Its 95 % interval; a name needs all of it at 0.99 or above, and 0.99 under each condition of `elsewhere`."""
    training_loss: float
    """The network's own loss on tasks as in training."""
    validation_loss: float
    """On tasks with twice the variance of W*."""
    ladder: tuple[Rung, ...]
    """All algorithms, the simplest first."""
    elsewhere: tuple[Condition, ...] = ()
    """What each explains, with the same parameters, on tasks with larger W*, fewer or more observations, or noise."""

    @property
    def runners_up(self) -> tuple[Rung, ...]:
        """The algorithms that explain most beside the one that gave the name, the nearest first."""
        others = [rung for rung in self.ladder if rung.name != self.name]
        return tuple(sorted(others, key=lambda rung: -rung.r2))

    def _summary(self) -> Summary:
        answer = self.name if self.is_known else f"no known algorithm; nearest: {self.nearest.name}"
        ladder = ", ".join(f"{rung.name} {rung.r2:.4g}" for rung in self.ladder)
        facts: dict[str, Any] = {"parameters": str(self.parameters) if self.parameters else None, "R²": float(self.r2)}
        return Summary(
            answer, {**facts, "95 % interval": self.r2_interval, "loss": self.training_loss, "R² of each": ladder}
        )

    @property
    def is_known(self) -> bool:
        return self.name != NONE

    @property
    def nearest(self) -> Rung:
        """The algorithm that explains most."""
        return _nearest(self.ladder)

    def as_data(self) -> dict[str, Any]:
        """The keys of `underhood in-context --json`."""
        return dataclasses.asdict(self)


@np.errstate(all="ignore")  # outputs that are not finite are refused; an algorithm that diverges does not fit
def in_context(
    network: Any,
    d_x: int = 3,
    d_y: int = 3,
    observations: int = 12,
    inputs: str = "uniform",
    *,
    seed: int = 0,
    batched: bool | None = None,
) -> Algorithm:
    """Which algorithm does a network run in context to predict y at a new x?

    It reads (x_1, y_1) … (x_T, y_T), (x, 0) and predicts with the last d_y outputs of the last step. Each algorithm is
    fitted to these predictions. One gives its name where it explains 0.99 of them with all of the 95 % interval, 0.99
    on tasks of other kinds with the same parameters (twice and four times W*, a third and twice the observations,
    noise), and leaves half as much open as every other algorithm that is not the same function. Otherwise the name is
    "none", and `.nearest`, `.runners_up` and `.elsewhere` say how near the known ones are.

    **Arguments:**

    - `network`: a model of this package, a callable (t, d_x + d_y) → (t, d_out) of NumPy, torch or jax, a torch module,
        or the path of an ONNX file.
    - `d_x`, `d_y`: the sizes of x and y.
    - `observations`: T, the examples in a sequence.
    - `inputs`: "uniform", "sphere" or "normal": the distribution of x, of variance 1.
    - `seed`: of the tasks.
    - `batched`: whether a callable takes (b, t, d), if known; tried out otherwise.

    **Returns:**

    An [`Algorithm`][underhood.Algorithm]: `.name`, `.parameters`, `.r2`, `.ladder`, `.elsewhere`.
    """
    network, _ = as_function(network)
    task = _task(d_x, d_y, observations, inputs, seed)
    if isinstance(network, AbstractModel) and network.d != task.d:
        rule = f"expected d_x + d_y = {network.d}, the inputs of this network"
        raise UnderhoodError(rule, f"{d_x} + {d_y}", "Give `d_x` and `d_y`.")
    predict = _predictions(as_numpy_function(network, task.d, batched=batched), task)
    fitting, _, wanted = _drawn(task, seed, 0, predict, FITTED)
    tested, right, held = _drawn(task, seed, 1, predict)
    if not np.any(held != held[:1]):
        raise UnderhoodError("expected a network whose predictions vary with the task", "the same one for every task")
    further, further_right, predicted = _drawn(task, seed, 2, predict, stream=VALIDATION)
    rules = [rule.fitted(fitting, wanted) for rule in RULES]
    measured = [_tested(rule(tested), held, seed) for rule in rules]
    ladder = tuple(_rungs(rules, measured, task, seed))
    elsewhere = Elsewhere.of(predict, rules, task, seed, TASKS)
    chosen = _chosen(ladder, elsewhere)
    shown = chosen or _nearest(ladder)
    return Algorithm(
        name=NONE if chosen is None else chosen.name,
        parameters={} if chosen is None else chosen.parameters,
        r2=shown.r2,
        r2_interval=shown.r2_interval,
        training_loss=_paired_loss(held, right, tested, rules, task, validation=False),
        validation_loss=_paired_loss(predicted, further_right, further, rules, task, validation=True),
        ladder=ladder,
        elsewhere=elsewhere.conditions,
    )


def _task(d_x: int, d_y: int, observations: int, inputs: str, seed: int) -> LinearRegression:
    for name, value in {"d_x": d_x, "d_y": d_y, "observations": observations, "seed": seed}.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise UnderhoodError(f"expected {name} to be a whole number", repr(value))
        if value < (name != "seed"):
            raise UnderhoodError(f"expected {name} of {int(name != 'seed')} or more", value)
    if seed >= 2**31:
        raise UnderhoodError("expected a seed below 2³¹", seed)
    numbers = MONTE_CARLO * TASKS * ((observations + 1) * (d_x + d_y) + (d_x + d_y) * d_x) + observations**2
    require_memory(3 * 8 * numbers, f"tasks with {observations} observations, d_x = {d_x}, d_y = {d_y}")
    return LinearRegression(int(observations), int(d_x), int(d_y), inputs)


def _predictions(call: Batched, task: LinearRegression) -> Batched:
    """Sequences → the last d_y outputs at the last step."""

    def predict(xs: Array) -> Array:
        outputs = call(xs)
        if outputs.shape[2] not in (task.d_y, task.d):
            rule = f"expected outputs y of size {task.d_y}, or (x, y) of size {task.d}"
            raise UnderhoodError(rule, f"{outputs.shape[2]} outputs", "Give the network's d_x and d_y.")
        return outputs[:, -1, -task.d_y :]

    return predict


def _drawn(
    task: LinearRegression, seed: int, part: int, predict: Batched, count: int | None = None, stream: int = HELD_OUT
) -> tuple[Observed, Array, Array]:
    """Fresh tasks, what is right, and what the network says."""
    # Always as many, since jax compiles for each number of them.
    xs, right = (drawn[:count] for drawn in draw(task, seed, TASKS, stream=stream, part=part))
    return Observed.of(xs, task.d_x), right, predict(xs)


def _tested(
    predicted: Float[Array, "b d_y"], held: Float[Array, "b d_y"], seed: int
) -> tuple[float, tuple[float, float]]:
    """R² of an algorithm for the network, and its 95 % interval by bootstrap over tasks."""
    return r_squared_interval(held, predicted, np.random.default_rng(seed))


def _rungs(
    rules: list[Rule], measured: list[tuple[float, tuple[float, float]]], task: LinearRegression, seed: int
) -> Iterator[Rung]:
    """The ladder: what each algorithm costs on the task, and what it explains of the network."""
    parts = (draw(task, seed, TASKS, part=3 + index) for index in range(MONTE_CARLO))
    xs, right = (np.concatenate(drawn) for drawn in zip(*parts, strict=True))
    seen = Observed.of(xs, task.d_x)
    for rule, (r2, interval) in zip(rules, measured, strict=True):
        best = rule.tuned(seen, right, task)
        exact = best.loss(task)
        best_loss = _loss(best(seen), right) if exact is None else exact
        yield Rung(rule.name, rule.parameters, r2, interval, rule.loss(task), _loss(rule(seen), right), best_loss)


def _chosen(ladder: tuple[Rung, ...], elsewhere: Elsewhere) -> Rung | None:
    """The rung that explains enough here and elsewhere, and more than every other."""
    enough = [rung.r2_interval[0] >= LEAST_R2 for rung in ladder]
    chosen = choose([rung.name for rung in ladder], [rung.r2 for rung in ladder], enough, elsewhere)
    return None if chosen is None else ladder[chosen]


def _nearest(ladder: tuple[Rung, ...]) -> Rung:
    return max(ladder, key=lambda rung: rung.r2)


def _paired_loss(
    predicted: Float[Array, "b d_y"],
    right: Float[Array, "b d_y"],
    seen: Observed,
    rules: list[Rule],
    task: LinearRegression,
    *,
    validation: bool,
) -> float:
    """The network's loss, less the noise of the draw: how far algorithms of known loss are off it on the same tasks."""
    here, known = _losses(predicted, right), []
    trivial = 0.5 * task.w_variance(validation=validation) * task.d_x  # that of ŷ = 0
    for rule in (*rules, *(one.tuned(seen, right, task) for one in rules)):
        exact = rule.loss(task, validation=validation)
        # Those near to diverging owe their loss to rare tasks, which may be missing here.
        if exact is not None and exact < trivial / 2:
            known.append(_losses(rule(seen), right) - exact)
    beside = np.stack([np.ones_like(here), *known], axis=1)
    # The constant of a regression on them: where the algorithms' losses are what they should be.
    return float(np.linalg.lstsq(beside, here, rcond=None)[0][0])


def _losses(predicted: Float[Array, "b d_y"], right: Float[Array, "b d_y"]) -> Float[Array, " b"]:
    return 0.5 * np.mean((predicted - right) ** 2, axis=1)


def _loss(predicted: Float[Array, "b d_y"], right: Float[Array, "b d_y"]) -> float:
    """The paper's: ½ · mean over tasks and coordinates."""
    return float(np.mean(_losses(predicted, right)))
