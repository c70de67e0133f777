"""Which algorithm is it? `python -m benchmarks.in_context [--seeds N]`, stored in results/bench/in_context.json.

known     each reference algorithm with random sizes and parameters: its name, parameters to 1 %, R² ≥ 0.999
false     networks that run none of them: trained softmax attention, random LSTMs, linear RNNs, and algorithms with
          noise, of which less than 0.99 is the algorithm; near-optimal predictors
losses    closed forms against 200,000 tasks, for all three sorts of inputs
networks  the paper's, trained (quick budget), and compiled ones
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import underhood as uh
from benchmarks.measure import row, show, store
from underhood.explain.algorithms import (
    DecayedGradientStep,
    DeltaRule,
    GradientStep,
    Kaczmarz,
    KGradientSteps,
    LeastSquares,
    Observed,
    Rule,
)
from underhood.studies.regression import quick_networks
from underhood.training.tasks.linear_regression import INPUTS, LinearRegression
from underhood.training.tasks.task import draw, half_mean_square

Function = Callable[[Any], Any]
TASKS = 200_000
RANDOM: dict[str, Callable[[np.random.Generator], Rule]] = {
    "gradient-step": lambda random: GradientStep(random.uniform(0.01, 0.12)),
    "decayed-gradient-step": lambda random: DecayedGradientStep(random.uniform(0.02, 0.2), random.uniform(0.3, 0.97)),
    "delta-rule": lambda random: DeltaRule(random.uniform(0.05, 0.3)),
    "kaczmarz": lambda random: Kaczmarz(),
    "k-gradient-steps": lambda random: KGradientSteps(int(random.integers(2, 9)), random.uniform(0.02, 0.06)),
    "least-squares": lambda random: LeastSquares(float(np.exp(random.uniform(np.log(0.05), np.log(10))))),
}


def known(name: str, seed: int) -> dict[str, Any]:
    """One reference algorithm, recognised or not."""
    random = np.random.default_rng([seed, *name.encode()])
    rule, d_x, d_y = RANDOM[name](random), int(random.integers(2, 5)), int(random.integers(1, 5))
    # On the sphere Kaczmarz is the delta rule with β = 1/d_x.
    inputs = str(random.choice([one for one in INPUTS if (name, one) != ("kaczmarz", "sphere")]))
    observations = int(random.integers(8, 17))
    found = uh.in_context(rule.network(d_x), d_x, d_y, observations, inputs, seed=seed, batched=True)
    named = found.name == name
    misses = [abs(found.parameters[one] / value - 1) for one, value in rule.parameters.items()] if named else [np.inf]
    return {"named": named, "worst_parameter": float(max(misses, default=0.0)), "r2": found.r2}


def softmax_attentions(count: int, steps: int = 1500) -> Iterator[Function]:
    """Two heads of softmax attention with a residual readout, trained on the paper's task side by side."""
    task, width = LinearRegression(), 16

    def start(key: Any) -> dict[str, Any]:
        names = {"q": (2, width, 6), "k": (2, width, 6), "v": (2, width, 6), "out": (3, 2 * width)}
        keys = jax.random.split(key, len(names))
        return {
            name: jax.random.normal(one, shape) / shape[-1] ** 0.5
            for (name, shape), one in zip(names.items(), keys, strict=True)
        }

    def forward(weights: dict[str, Any], xs: Any) -> Any:
        q, k, v = (jnp.einsum("hwd,...td->...htw", weights[name], xs) for name in "qkv")
        past = jnp.tril(jnp.ones((xs.shape[-2],) * 2, bool))
        scores = jnp.where(past, q @ jnp.swapaxes(k, -1, -2) / width**0.5, -jnp.inf)
        heads = jnp.moveaxis(jax.nn.softmax(scores) @ v, -3, -2)
        return heads.reshape(*heads.shape[:-2], -1) @ weights["out"].T

    optimizer = optax.adam(3e-3)

    @jax.vmap
    def train(key: Any) -> Any:
        def step(carried: Any, key: Any) -> Any:
            weights, state = carried
            xs, wanted = task.batch(key, 128)
            slope = jax.grad(lambda weights: half_mean_square(forward(weights, xs)[:, -1], wanted))(weights)
            change, state = optimizer.update(slope, state)
            return (optax.apply_updates(weights, change), state), None

        weights = start(key)
        return jax.lax.scan(step, (weights, optimizer.init(weights)), jax.random.split(key, steps))[0][0]

    trained = jax.jit(train)(jax.random.split(jax.random.key(0), count))
    run = jax.jit(forward)
    for index in range(count):
        weights = jax.tree.map(lambda leaf, index=index: leaf[index], trained)
        yield lambda xs, weights=weights: run(weights, jnp.asarray(xs, jnp.float32))


def linear_rnn(seed: int) -> Function:
    random = np.random.default_rng(seed)
    recurrence = random.standard_normal((8, 8))
    recurrence *= random.uniform(0.5, 1.0) / np.abs(np.linalg.eigvals(recurrence)).max()
    drive, readout = random.standard_normal((8, 6)), random.standard_normal((3, 8))

    def call(xs: np.ndarray) -> np.ndarray:
        state, ys = np.zeros((*xs.shape[:-2], 8)), []
        for t in range(xs.shape[-2]):
            state = state @ recurrence.T + xs[..., t, :] @ drive.T
            ys.append(state @ readout.T)
        return np.stack(ys, axis=-2)

    return call


def noisy(seed: int) -> Function:
    """Between 0.6 and 0.989 of the predictions' variance is the algorithm."""
    random = np.random.default_rng(seed)
    name = list(RANDOM)[seed % len(RANDOM)]
    algorithm, share = RANDOM[name](random).network(3), random.uniform(0.6, 0.989)
    size = algorithm(draw(LinearRegression(), seed, 2048, part=9)[0])[:, -1].std()

    def call(xs: np.ndarray) -> np.ndarray:
        ys = algorithm(xs)
        return ys + size * np.sqrt(1 / share - 1) * random.standard_normal(ys.shape)

    return call


def near_optimal(seed: int) -> Function:
    """Good predictors that are none of the algorithms: momentum, Newton, shrunk truth, a ridge that grows, Bayes."""
    random, sort = np.random.default_rng(seed), seed % 5
    rate, share, steps = random.uniform(0.05, 0.08), random.uniform(0.2, 0.4), int(random.integers(4, 7))
    shrink, growth, spread = random.uniform(0.92, 0.97), random.uniform(0.05, 0.2), random.uniform(0.2, 0.5)

    def momentum(values: np.ndarray, observations: int) -> np.ndarray:
        now = before = np.zeros_like(values)
        for _ in range(steps):
            now, before = now + rate * (1 - values * now) + share * (now - before), now
        return now

    def newton(values: np.ndarray, observations: int) -> np.ndarray:
        inverse = 2 / (values.max(axis=1, keepdims=True) + values.min(axis=1, keepdims=True)) + 0 * values
        for _ in range(2 + seed % 2):
            inverse = inverse * (2 - values * inverse)
        return inverse

    responses: tuple[Callable[[np.ndarray, int], np.ndarray], ...] = (
        momentum,
        newton,
        lambda values, observations: shrink / np.maximum(values, 1e-9),
        lambda values, observations: 1 / (values + growth * observations),
    )

    def call(xs: np.ndarray) -> np.ndarray:
        ys = np.zeros((*xs.shape[:-1], 3))
        seen = Observed.of(xs.reshape(-1, *xs.shape[-2:]), 3)
        last = bayes(seen, spread) if sort == 4 else seen.filtered(responses[sort](seen.spectrum[0], seen.x.shape[1]))
        ys.reshape(-1, *ys.shape[-2:])[:, -1] = last
        return ys

    return call


def bayes(seen: Observed, spread: float) -> np.ndarray:
    """The best prediction for rows of W* that are one of eight, with noise of this spread on y."""
    rows = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 3), axis=-1).reshape(-1, 3) / 3**0.5
    errors = np.sum((seen.y[:, :, :, None] - (seen.x @ rows.T)[:, :, None]) ** 2, axis=1)
    weights = np.exp(-(errors - errors.min(axis=2, keepdims=True)) / (2 * spread**2))
    return np.einsum("byk,bk->by", weights / weights.sum(axis=2, keepdims=True), seen.query @ rows.T)


def false_names(count: int) -> dict[str, list[str]]:
    """The names given to networks that have none."""
    lstms = (uh.make_model("lstm", 6, d_out=3, hidden=32, seed=seed) for seed in range(count))
    sorts: dict[str, Iterator[Any]] = {
        "trained softmax attention": softmax_attentions(count),
        "random LSTM": iter(lstms),
        "noise-corrupted algorithm": map(noisy, range(count)),
        "linear RNN": map(linear_rnn, range(count)),
        "near-optimal predictor": map(near_optimal, range(count)),
    }
    return {
        sort: [uh.in_context(one, seed=seed, batched=True).name for seed, one in enumerate(networks)]
        for sort, networks in sorts.items()
    }


def loss_on(rule: Rule, xs: np.ndarray, task: LinearRegression, *, validation: bool) -> float:
    """½ σ_W² mean ‖M − I‖² over tasks: W* and the query are averaged over exactly, as a few of them weigh most.

    M is what the algorithm makes of W* = I.
    """
    x, unit = xs[:, :-1, : task.d_x], np.eye(task.d_x)
    columns = [rule(Observed(x, x, np.tile(one, (len(x), 1)))) - one for one in unit]
    return 0.5 * task.w_variance(validation=validation) * float(np.mean(sum(np.sum(c**2, axis=1) for c in columns)))


def closed_forms() -> list[dict[str, Any]]:
    """Closed forms against 200,000 tasks."""
    rows = []
    decayed = DecayedGradientStep(0.05, 0.8)
    for inputs in INPUTS:
        task = LinearRegression(inputs=inputs)
        rules = (GradientStep(task.optimal_eta), DeltaRule(1 / task.fourth_moment), Kaczmarz(), decayed)
        for validation in (False, True):
            xs, right = draw(task, 0, TASKS, stream=2 if validation else 1)
            seen = Observed.of(xs, task.d_x)
            for rule in (*rules, decayed.tuned(seen, right, task)):
                exact = rule.loss(task, validation=validation)
                assert exact is not None
                measured = loss_on(rule, xs, task, validation=validation)
                where = f"{rule.name} {inputs}{', validation' * validation}"
                rows.append({"where": where, "closed_form": exact, "monte_carlo": measured})
    return rows


def networks() -> dict[str, Any]:
    """Algorithms of networks that were trained or compiled."""
    (paper,) = quick_networks()
    delta, mesa = ("delta-rule", "gated-deltanet"), ("least-squares", "mesanet")
    found = {
        "paper": uh.in_context(paper),
        "gated-deltanet": uh.in_context(uh.algorithm_network(delta[0], to=delta[1]), inputs="sphere"),
        "mesanet": uh.in_context(uh.algorithm_network(mesa[0], to=mesa[1]), inputs="sphere"),
    }
    return {name: one.as_data() for name, one in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="of each known algorithm; 5 times as many false ones")
    seeds = parser.parse_args(arguments).seeds
    rows: list[dict[str, Any]] = []
    details: dict[str, Any] = {"known": {}}
    for name in RANDOM:
        found = details["known"][name] = [known(name, seed) for seed in range(seeds)]
        right = sum(one["named"] and one["worst_parameter"] <= 0.01 and one["r2"] >= 0.999 for one in found)
        worst = max(one["worst_parameter"] for one in found)
        least = min(one["r2"] for one in found)
        detail = f"of {seeds}; parameters off by {worst:.1e} at most, R² {least:.6f} at least"
        rows.append(row(f"{name}: recognised", right, at_least=seeds, detail=detail))
    details["false"] = false_names(max(1, seeds * 5 // 4))
    given = [name for names in details["false"].values() for name in names]
    refused = sum(name == "none" for name in given)
    rows.append(row("no known algorithm: called none", refused, at_least=len(given), detail=f"of {len(given)}"))
    details["losses"] = closed_forms()
    gap = max(abs(one["monte_carlo"] / one["closed_form"] - 1) for one in details["losses"])
    rows.append(row("1 % over the largest gap of a closed form", 0.01 / gap, at_least=1, detail=f"{gap:.4f}"))
    made = details["networks"] = networks()
    off = abs(made["paper"]["parameters"].get("eta", np.inf) * 14.8 - 1)
    rows.append(row("paper's network: 0.5 % over the gap of η to 1/14.8", 0.005 / off, at_least=1, detail=f"{off:.5f}"))
    loss = made["gated-deltanet"]["training_loss"]
    off = abs(loss / 0.00385 - 1)
    rows.append(row("DeltaNet: 2 % over the gap of its loss to 0.00385", 0.02 / off, at_least=1, detail=f"{loss:.6f}"))
    for name, wanted in (("paper", "gradient-step"), ("gated-deltanet", "delta-rule"), ("mesanet", "least-squares")):
        rows.append(row(f"{name} is {wanted}", float(made[name]["name"] == wanted), at_least=1))
    show("in context", rows)
    store("in_context", rows, details)


if __name__ == "__main__":
    main()
