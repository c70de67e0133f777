"""Streaming: 10⁷ steps through a compiled network, against Eq. 1 in float64 and in extended precision.

    error at t  =  max_{s ≤ t} |y_s − y*_s|  /  max_{s ≤ t} |y*_s|

y* is Eq. 1 with sums in NumPy's longest float. The plain float64 recurrence of Eq. 1 is measured beside the network:
the network may not be worse than its bound, nor may its memory grow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torture.children import in_processes
from torture.tally import Tally

STEPS = {"small": 50_000, "long": 10_000_000}
CHUNK, BOUND = 10_000, 1.0
TOLERANCE = 1e-6  # of the largest output: rounding adds up over the horizon, and the compiler bounds the worst of it
MOST_GROWTH = 64 * 2**20  # bytes between the first chunks and the end
TARGETS = ("gated-rnn", "gated-rnn-minimal", "lru-in-skip")


class Reference:
    """Eq. 1 for a stream, in extended precision, a chunk at a time."""

    def __init__(self, attention: Any) -> None:
        weights = attention.w_value, attention.w_key, attention.w_query
        self.weights = [np.asarray(weight[0]).astype(np.longdouble) for weight in weights]
        self.memory = np.zeros((attention.d_out, attention.d_key), np.longdouble)

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        values, keys, queries = (xs.astype(np.longdouble) @ weight.T for weight in self.weights)
        memories = self.memory + np.cumsum(values[:, :, None] * keys[:, None, :], axis=0)
        self.memory = memories[-1]
        return np.einsum("tvk,tk->tv", memories, queries)


def streamed(target: str, steps: int, seed: int = 0) -> Tally:
    """One network along the whole stream."""
    import underhood as uh

    tally = Tally("streaming", f"{steps:.0e} steps, {target}".replace("e+0", "e"))
    attention = uh.random_attention(2, seed=seed)
    compiled = uh.compile(attention, to=target, horizon=steps, input_bound=BOUND, tolerance=TOLERANCE)
    runners = {"network": compiled.model, "attention in float64": attention}
    states = {name: model.initial_state() for name, model in runners.items()}
    reference, random = Reference(attention), np.random.default_rng(seed)
    worst, largest, absolute = dict.fromkeys(runners, 0.0), 0.0, 0.0
    growth: dict[str, dict[str, float]] = {name: {} for name in runners}
    resident = 0
    for begin in range(0, steps, CHUNK):
        xs = random.uniform(-BOUND, BOUND, (CHUNK, attention.d))
        wanted = reference(xs)
        running = np.maximum.accumulate(np.maximum(np.max(np.abs(wanted), axis=1), largest))
        largest = running[-1]
        for name, model in runners.items():
            ys, states[name] = model.scan(xs, states[name])
            errors = np.max(np.abs(np.asarray(ys, np.longdouble) - wanted), axis=1)
            so_far = np.maximum.accumulate(np.maximum(errors, worst[name]))
            for power in range(3, 9):
                if begin < 10**power <= begin + CHUNK:
                    at = 10**power - begin - 1
                    growth[name][f"1e{power}"] = float(so_far[at] / running[at])
            worst[name] = so_far[-1]
        if begin == 4 * CHUNK:
            resident = _resident()
    absolute, grown = float(worst["network"]), _resident() - resident
    tally.count(
        None if absolute <= compiled.error_bound else f"off by {absolute:.3g}, bound {compiled.error_bound:.3g}"
    )
    tally.count(None if grown <= MOST_GROWTH else f"memory grew by {grown >> 20} MB")
    curve = ", ".join(f"{value:.1e} at {at}" for at, value in growth["network"].items())
    tally.detail = f"error over largest output: {curve}; memory {max(grown, 0) / 2**20:+.0f} MB"
    tally.numbers = {
        "steps": steps,
        "error": growth,
        "error_bound": compiled.error_bound,
        "largest_output": float(largest),
    }
    tally.numbers |= {"largest_error": absolute, "memory_growth_bytes": grown}
    return tally


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def run(scale: str, workers: int = 2, seed: int = 0) -> list[Tally]:
    targets = TARGETS if scale == "long" else TARGETS[::2]
    return in_processes([partial(streamed, target, STEPS[scale], seed) for target in targets], workers)
