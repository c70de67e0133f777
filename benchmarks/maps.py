"""Attention maps against a plain Python double loop, and of a stack.

    python -m benchmarks maps

A Mamba layer of 64 channels with 16 states, t = 5000, float32. The loop takes each pair s ≤ t by itself, as public
programs do: the decay between them, the score of each channel, its contribution to the output, the length of that. It
runs on PAIRS of the pairs, drawn at random, and is extrapolated to all of them. Times are the clock's: the map takes
its tiles on all cores, and a Python loop has one. Both give the same numbers, or there is no comparison.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import jax
import jax.numpy as jnp
import numpy as np

import underhood as uh
from benchmarks.measure import row, show, store
from underhood.architectures.mamba.cell import Mamba

LENGTH, WIDTH, CHANNELS, STATE, PAIRS = 5000, 32, 64, 16, 4000
FASTER, MOST_GB, MOST_SECONDS = 100, 2.0, 2.0


def by_loop(cell: Mamba, xs: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, float]:
    """|c[t, s]| of each pair (t, s), t > s, one after another, and the seconds of the loop."""
    past = cell.conv1d.initial_past()
    u = jax.nn.silu(cell.conv1d.scan(cell._projected(jnp.asarray(xs))[0], past)[0])
    step, driven, b, c = (np.asarray(one) for one in cell._selected(u))
    opened, rates = np.asarray(jax.nn.silu(cell._projected(jnp.asarray(xs))[1])), -np.exp(np.asarray(cell.a_log))
    sums, out = np.cumsum(step.astype(np.float64), axis=0), np.asarray(cell.out_proj)
    begun, sizes = time.perf_counter(), np.zeros(len(pairs))
    for index, (t, s) in enumerate(pairs):
        decay = np.exp(rates * (sums[t] - sums[s])[:, None].astype(np.float32))
        score = (decay * b[s]) @ c[t]
        sizes[index] = np.linalg.norm(out @ (opened[t] * score * driven[s]))
    return sizes, time.perf_counter() - begun


def least(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of the best round, after one that compiles."""
    call()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> int:
    random = np.random.default_rng(0)
    cell = Mamba.random(d=WIDTH, channels=CHANNELS, d_out=WIDTH, state=STATE, key=jax.random.key(0))
    xs = random.normal(size=(LENGTH, WIDTH)).astype(np.float32)
    pairs = np.sort(random.integers(0, LENGTH, (PAIRS, 2)), axis=1)[:, ::-1]
    pairs = pairs[pairs[:, 0] > pairs[:, 1]]
    sizes, looped = by_loop(cell, xs, pairs)
    every = looped / len(pairs) * LENGTH * (LENGTH + 1) / 2
    found = uh.attention_map(cell, xs)
    difference = float(np.abs(found.weights[0][tuple(pairs.T)] - sizes).max() / sizes.max())
    assert difference <= 1e-4, difference
    seconds = least(lambda: uh.attention_map(cell, xs), rounds=3)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    stack = uh.make_model("mamba", 8, hidden=32, layers=4)
    short = random.normal(size=(512, 8)).astype(np.float32)
    stacked = least(lambda: uh.attention_map(stack, short), rounds=3)
    rows = [
        row("map, t = 5000", seconds, unit="s", detail=f"completeness {float(found.completeness):.1e}"),
        row("Python loop", every, unit="s", detail=f"extrapolated from {len(pairs)} of its pairs"),
        row("faster than the loop", every / seconds, unit="×", at_least=FASTER),
        row("room below 2 GB", MOST_GB - gigabytes, unit="GB", at_least=0, detail=f"peak {gigabytes:.2f} GB"),
        row("speed of 4 layers, t = 512", MOST_SECONDS / stacked, at_least=1, detail=f"{stacked:.2f} s; 2 s asked"),
    ]
    show("Attention maps", rows)
    extra = {"pairs": len(pairs), "difference": difference, "stack_seconds": stacked, "peak_gigabytes": gigabytes}
    store("maps", rows, extra)
    return 0 if all(entry["met"] is not False for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
