"""What is it, if it is no attention? `python -m benchmarks.diagnosis [--count N]`.

Writes results/bench/diagnosis.json: for each class that the diagnosis knows, how many of N random instances at
d = 2 to 6 are named rightly first; and how many attentions are called anything else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import underhood as uh

OUT = Path("results/bench/diagnosis.json")
Function = Callable[[np.ndarray], np.ndarray]


class Instance:
    """Random weights of one instance, and attention in plain NumPy on one sequence."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.d = int(self.random.integers(2, 7))
        self.heads = int(self.random.integers(1, 3))
        self.values, self.keys, self.queries = (self.matrix(self.heads) for _ in range(3))

    def matrix(self, *leading: int, size: int | None = None) -> np.ndarray:
        size = self.d if size is None else size
        return self.random.standard_normal((*leading, self.d, size)) / np.sqrt(size)

    def scores(self, xs: np.ndarray, head: int) -> np.ndarray:
        return (xs @ self.queries[head].T) @ (xs @ self.keys[head].T).T

    def attention(self, xs: np.ndarray, mask: Callable[[int], np.ndarray] = lambda t: np.tril(np.ones((t, t)))) -> Any:
        parts = ((mask(len(xs)) * self.scores(xs, h)) @ (xs @ self.values[h].T) for h in range(self.heads))
        return sum(parts, np.zeros(xs.shape))


def plain(one: Instance) -> Function:
    return one.attention


def noisy(one: Instance) -> Function:
    """Dropout on the inputs, as a module in training has it."""
    keep, random = one.random.uniform(0.5, 0.95), one.random
    return lambda xs: one.attention(xs * (random.random(xs.shape) < keep) / keep)


def looks_ahead(one: Instance) -> Function:
    if one.random.random() < 0.5:
        return lambda xs: one.attention(xs, lambda t: np.ones((t, t)))
    return lambda xs: _softmax(one.scores(xs, 0)) @ (xs @ one.values[0].T)


def limited_precision(one: Instance) -> Function:
    """All in float16, or the outputs rounded to it."""
    if one.random.random() < 0.5:
        return lambda xs: one.attention(xs).astype(np.float16)

    def call(xs: np.ndarray) -> np.ndarray:
        half = [weight.astype(np.float16) for weight in (one.values, one.keys, one.queries)]
        x, total = xs.astype(np.float16), np.zeros(xs.shape, np.float16)
        for value, key, query in zip(*half, strict=True):
            total += (np.tril((x @ query.T) @ (x @ key.T).T)) @ (x @ value.T)
        return total.astype(np.float64)

    return call


def linear_recurrence(one: Instance) -> Function:
    recurrence, drive, readout = one.matrix(size=8).T @ one.matrix(size=8), one.matrix(size=8).T, one.matrix(size=8)
    recurrence *= one.random.uniform(0.3, 0.99) / np.abs(np.linalg.eigvals(recurrence)).max()

    def call(xs: np.ndarray) -> np.ndarray:
        state, ys = np.zeros(8), []
        for x in xs:
            state = recurrence @ state + drive @ x
            ys.append(readout @ state)
        return np.stack(ys)

    return call


def constant_output(one: Instance) -> Function:
    constant = one.random.standard_normal(one.d) * one.random.uniform(0.3, 3)
    return lambda xs: one.attention(xs) + constant


def linear_term(one: Instance) -> Function:
    weight = np.eye(one.d) if one.random.random() < 0.5 else one.matrix()
    return lambda xs: one.attention(xs) + xs @ weight.T


def strictly_causal(one: Instance) -> Function:
    return lambda xs: one.attention(xs, lambda t: np.tril(np.ones((t, t)), -1))


def constant_inputs(one: Instance) -> Function:
    """Biases in one, two or all of query, key and value."""
    biases = one.random.standard_normal((3, one.d)) * np.array([[1], *one.random.integers(0, 2, (2, 1))])
    value_bias, key_bias, query_bias = one.random.permutation(biases)

    def call(xs: np.ndarray) -> np.ndarray:
        total = np.zeros(xs.shape)
        for value, key, query in zip(one.values, one.keys, one.queries, strict=True):
            scores = (xs @ query.T + query_bias) @ (xs @ key.T + key_bias).T
            total += np.tril(scores) @ (xs @ value.T + value_bias)
        return total

    return call


def several_decays(one: Instance) -> Function:
    """More heads, each with a decay of its own, than the verdict decayed-attention takes."""
    heads = 12
    values, keys, queries = (one.matrix(heads) for _ in range(3))
    decays = np.sort(one.random.uniform(0.05, 0.98, heads))

    def call(xs: np.ndarray) -> np.ndarray:
        lags = np.maximum(np.subtract.outer(np.arange(len(xs)), np.arange(len(xs))), 0)
        total = np.zeros(xs.shape)
        for value, key, query, decay in zip(values, keys, queries, decays, strict=True):
            total += np.tril(decay**lags * ((xs @ query.T) @ (xs @ key.T).T)) @ (xs @ value.T)
        return total

    return call


def softmax(one: Instance) -> Function:
    def call(xs: np.ndarray) -> np.ndarray:
        past, total = np.tril(np.ones((len(xs), len(xs)), bool)), np.zeros(xs.shape)
        for head in range(one.heads):
            scores = np.where(past, one.scores(xs, head) / np.sqrt(one.d), -np.inf)
            total += _softmax(scores) @ (xs @ one.values[head].T)
        return total

    return call


def other_average(one: Instance) -> Function:
    def call(xs: np.ndarray) -> np.ndarray:
        total = np.zeros(xs.shape)
        for head in range(one.heads):
            scores = np.tril((1 + np.tanh(one.scores(xs, head) / one.d)) ** 2 + 0.1)
            total += scores / scores.sum(axis=1, keepdims=True) @ (xs @ one.values[head].T)
        return total

    return call


def delta_rule(one: Instance) -> Function:
    rate = one.random.uniform(0.1, 1.0) / one.d

    def call(xs: np.ndarray) -> np.ndarray:
        state, ys = np.zeros((one.d, one.d)), []
        for x in xs:
            value, key, query = one.values[0] @ x, one.keys[0] @ x, one.queries[0] @ x
            key = rate * key
            state = state + np.outer(value - state @ key, key)
            ys.append(state @ query)
        return np.stack(ys)

    return call


def degree(one: Instance) -> Function:
    """Squared scores (5), a product of two sums (2), or sums of products times squares (4)."""
    kind = int(one.random.integers(3))
    if kind == 0:
        return lambda xs: np.tril(one.scores(xs, 0) ** 2) @ (xs @ one.values[0].T)
    if kind == 1:
        return lambda xs: np.cumsum(xs @ one.values[0].T, axis=0) * np.cumsum(xs @ one.keys[0].T, axis=0)
    return lambda xs: np.cumsum((xs @ one.values[0].T) * (xs @ one.keys[0].T), axis=0) * (xs @ one.queries[0].T) ** 2


def none_of_these(one: Instance) -> Function:
    """Waves of sums: next to nothing of it is constant, linear, or of the current input alone."""

    def call(xs: np.ndarray) -> np.ndarray:
        past = np.cumsum(xs, axis=0)
        return np.sin(3 * past @ one.values[0].T) * np.sin(2 * past @ one.keys[0].T)

    return call


def batch_dependent(one: Instance) -> Function:
    """Less a mean over the batch, where a batch is large enough to have one."""

    def call(xs: np.ndarray) -> np.ndarray:
        batch = xs if xs.ndim == 3 else xs[None]
        batch = batch - batch.mean(axis=0) if len(batch) > 8 else batch
        ys = np.stack([one.attention(sequence) for sequence in batch])
        return ys if xs.ndim == 3 else ys[0]

    return call


def memoryless(one: Instance) -> Function:
    return lambda xs: np.tanh(xs @ one.values[0].T) * (xs @ one.keys[0].T)


def with_rest(one: Instance, part: Function, size: float = 0.3) -> Function:
    """Mostly something simple, and a rest that is not."""
    return lambda xs: part(xs) + size * np.tanh(one.attention(xs)) * xs


def constant_part(one: Instance) -> Function:
    size = float(one.random.integers(2, 6))
    return with_rest(one, lambda xs: np.full(xs.shape, size))


def linear_part(one: Instance) -> Function:
    decay = one.random.uniform(0.3, 0.9)

    def recurrence(xs: np.ndarray) -> np.ndarray:
        lags = np.subtract.outer(np.arange(len(xs)), np.arange(len(xs)))
        return np.where(lags >= 0, decay ** np.maximum(lags, 0), 0) @ xs @ one.values[0].T

    return with_rest(one, recurrence)


def memoryless_part(one: Instance) -> Function:
    return with_rest(one, lambda xs: np.abs(xs) - 0.8)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


CLASSES: dict[str, Callable[[Instance], Function]] = {
    "random": noisy,
    "batch-dependent": batch_dependent,
    "looks-ahead": looks_ahead,
    "limited-precision": limited_precision,
    "memoryless": memoryless,
    "linear-recurrence": linear_recurrence,
    "constant-output": constant_output,
    "linear-term": linear_term,
    "strictly-causal": strictly_causal,
    "constant-inputs": constant_inputs,
    "several-decays": several_decays,
    "softmax": softmax,
    "other-average": other_average,
    "delta-rule": delta_rule,
    "degree": degree,
    "constant-part": constant_part,
    "linear-part": linear_part,
    "memoryless-part": memoryless_part,
    "none-of-these": none_of_these,
}


def verdict(function: Function, d: int, seed: int) -> str:
    """What probe calls it: the verdict where it is yes, the first diagnosis where it is no."""
    found = uh.probe(function, d, seed=seed)
    return found.verdict if found.is_attention else found.diagnosis[0]["what"]


def answers(make: Callable[[Instance], Function], count: int) -> Counter[str]:
    instances = ((seed, Instance(seed)) for seed in range(count))
    return Counter(verdict(make(one), one.d, seed) for seed, one in instances)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="instances of each class; five times as many attentions")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    start, rows = time.perf_counter(), {}
    for name, make in CLASSES.items():
        found = answers(make, options.count)
        rows[name] = {"instances": options.count, "named": found[name], "answers": dict(found)}
        print(name, json.dumps(rows[name]), flush=True)
    found = answers(plain, 5 * options.count)
    attentions = {"instances": 5 * options.count, "named": found["linear-attention"], "answers": dict(found)}
    print("attention", json.dumps(attentions), flush=True)
    record = {"classes": rows, "attention": attentions, "seconds": round(time.perf_counter() - start, 1)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return record


if __name__ == "__main__":
    main()
