"""Ascent on error/bound: hostile weights and inputs against the bounds of `uh.compile`.

    python -m tests.compiler.adversary --compiles 3000 --out results/bench/adversary.json

Weights: normal, positive, tiny, huge, of mixed scales, near cancelling, of low rank, with zero heads; decays at 0, at 1
and near both; every target, both precisions, d from 1 to 64, horizons from 1 to 10⁴. Inputs: signs and coordinates are
changed where that raises the error, which is taken against the source in extended precision.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import underhood as uh
from underhood.compiler.targets import TARGETS
from underhood.compiler.verify import extended

DECAYS = (1.0, 1.0, 1.0, 0.0, 0.5, 0.9, 1e-3, 1 - 1e-6, 1 - 0.51 * 2.0**-24)
SIZES = (1, 1, 2, 2, 3, 4, 5, 8, 13, 24, 40, 64)
HORIZONS = (1, 1, 2, 3, 10, 10, 33, 100, 300)
WORK = 30_000_000  # numbers remembered times steps times inputs of one case


@dataclasses.dataclass(frozen=True)
class Case:
    """One compile and the worst ratio found."""

    target: str
    dtype: str
    d: int
    horizon: int
    weights: str
    ratio: float
    inputs: int
    bound: float
    average: float
    """Largest error on the first inputs, which are drawn."""


def weights(random: np.random.Generator, style: str, shape: tuple[int, int, int]) -> np.ndarray:
    """(heads, rows, d) of this style."""
    drawn = random.normal(size=shape)
    if style == "positive":
        return np.abs(drawn)
    if style == "tiny":
        return drawn * 10.0 ** -random.integers(1, 9)
    if style == "huge":
        return drawn * 10.0 ** random.integers(1, 7)
    if style == "mixed":
        return drawn * 10.0 ** random.uniform(-4, 4, (*shape[:2], 1))
    if style == "cancelling":
        return drawn[:1] * (-1.0) ** np.arange(shape[0])[:, None, None] * (1 + 1e-6 * drawn)
    if style == "low-rank":
        return random.normal(size=(*shape[:2], 1)) @ random.normal(size=(shape[0], 1, shape[2]))
    if style == "silent":
        drawn[random.integers(shape[0])] = 0
    return drawn


STYLES = ("normal", "positive", "tiny", "huge", "mixed", "cancelling", "low-rank", "silent")


def hostile(random: np.random.Generator, style: str, d: int) -> uh.LinearAttention:
    """An attention of one to three heads, a third of them with decays."""
    heads = int(random.integers(1, 4))
    d_key, d_value = (int(random.integers(1, min(d, 6) + 1)) for _ in range(2))
    rows = (d_value, d_key, d_key)
    matrices = (weights(random, style if random.random() < 0.7 else "normal", (heads, each, d)) for each in rows)
    decay = random.choice(DECAYS, heads) if random.random() < 1 / 3 else None
    return uh.LinearAttention(*matrices, decay=decay)


def ascend(
    model: Any, source: Any, random: np.random.Generator, horizon: int, bound: float, inputs: int, input_bound: float
) -> tuple[float, float]:
    """The largest error/bound over so many inputs, and the largest error of those that were only drawn."""
    best, most, drawn_most, shape = None, 0.0, 0.0, (horizon, source.d)
    sides = (1.0,) if random.random() < 0.3 else (-1.0, 1.0)
    for index in range(inputs):
        inward = random.uniform(0, 1, shape) * 10.0 ** -random.uniform(0, 9, shape) if random.random() < 0.8 else 0.0
        corner = np.tile(random.choice(sides, source.d), (horizon, 1))
        xs = (corner if random.random() < 0.5 else random.choice(sides, shape)) * input_bound * (1 - inward)
        explored = index < inputs // 4
        if not explored and best is not None:
            xs = np.where(random.random(shape) < random.choice([0.02, 0.1, 0.5]), xs, best)
        error = float(np.max(np.abs(np.asarray(model(xs)) - extended(source, xs)), initial=0.0))
        error = error if np.isfinite(error) else np.inf
        drawn_most = max(drawn_most, error) if explored else drawn_most
        if error > most or best is None:
            best, most = xs, max(error, most)
    return (most / bound if bound > 0 else (np.inf if most > 0 else 0.0)), drawn_most


def attack(seed: int, target: str, inputs: int, most_d: int = 64) -> Case | None:
    """One case; None where the compile is refused, as it should be if nothing can be promised."""
    random = np.random.default_rng(seed)
    d = int(random.choice([size for size in SIZES if size <= most_d]))
    horizon, style = int(random.choice(HORIZONS)), str(random.choice(STYLES))
    dtype, input_bound = str(random.choice(["float64", "float32"])), float(random.choice([4.0, 4.0, 1.0, 0.01, 30.0]))
    source = hostile(random, style, d)
    settings = {"horizon": horizon, "dtype": dtype, "input_bound": input_bound}
    try:
        compiled = uh.compile(source, to=target, order=int(random.choice([1, 1, 1, 2])), **settings)
    except uh.UnderhoodError as refusal:
        if "defect" in str(refusal):  # measured beyond its bound
            return Case(target, dtype, d, horizon, style, np.inf, 0, 0.0, 0.0)
        return None
    count = max(8, min(inputs, WORK // (horizon * max(1, compiled.hidden))))
    ratio, drawn = ascend(compiled.model, source, random, horizon, compiled.error_bound, count, input_bound)
    return Case(target, dtype, d, horizon, style, ratio, count, compiled.error_bound, drawn)


def summary(cases: list[Case], refused: int, seconds: float) -> dict[str, Any]:
    """What results/bench/adversary.json says."""
    by_target = {}
    for target in TARGETS:
        mine = [case for case in cases if case.target == target]
        loose = [case.bound / case.average for case in mine if case.average > 0]
        by_target[target] = {
            "compiles": len(mine),
            "inputs": sum(case.inputs for case in mine),
            "largest_ratio": max((case.ratio for case in mine), default=None),
            "bound_over_error_median": float(np.median(loose)) if loose else None,
        }
    return {
        "compiles": len(cases),
        "refused": refused,
        "inputs": sum(case.inputs for case in cases),
        "violations": sum(case.ratio > 1 for case in cases),
        "largest_ratio": max((case.ratio for case in cases), default=None),
        "seconds": round(seconds),
        "weights": dict(Counter(case.weights for case in cases)),
        "targets": by_target,
        "worst": [dataclasses.asdict(case) for case in sorted(cases, key=lambda case: -case.ratio)[:10]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiles", type=int, default=3000)
    parser.add_argument("--inputs", type=int, default=70)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-d", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=np.inf)
    parser.add_argument("--out", type=Path, default=Path("results/bench/adversary.json"))
    arguments = parser.parse_args()
    cases, refused, start, targets = [], 0, time.perf_counter(), list(TARGETS)
    seed = arguments.seed * 10**6
    while len(cases) < arguments.compiles and time.perf_counter() - start < arguments.seconds:
        case = attack(seed, targets[seed % len(targets)], arguments.inputs, arguments.most_d)
        seed += 1
        if case is None:
            refused += 1
            continue
        cases.append(case)
        if case.ratio > 1:
            print("VIOLATION", seed - 1, case, flush=True)
        if len(cases) % 10 == 0:
            arguments.out.write_text(json.dumps(summary(cases, refused, time.perf_counter() - start), indent=1) + "\n")
            print(len(cases), refused, max(case.ratio for case in cases), flush=True)


if __name__ == "__main__":
    main()
