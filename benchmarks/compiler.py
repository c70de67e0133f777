"""What the compiler promises, measured: `python -m benchmarks.compiler [--seeds N] [--part PART]`.

errors: every target at every order, d from 1 to 8 and heads from 1 to 4 in turn, horizon 1000, inputs within ±4.
float32: the exact targets in single precision, likewise.
large: d = 64 with sparse gatings: seconds, memory, and a streaming step against the attention's own.
startup: `underhood --help` against `import jax`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import underhood as uh
from benchmarks.measure import best_seconds, show, store
from underhood.compiler.compile import TARGETS

ASKED = {1: 1e-7, 2: 1e-9, 3: 1e-10}
CANCELLING = {"d": 2, "seed": 3}  # keys and queries nearly take each other away: the hardest of some hundreds
SIZES = [(1, 1), (2, 2), (3, 4), (4, 1), (5, 3), (6, 2), (7, 1), (8, 1), (8, 4)]


def asked(target: str) -> dict[int, float]:
    if TARGETS[target].exact:
        return {1: 1e-12}
    return {1: 1e-4, 2: 1e-6} if target == "gru" else ASKED


def at_most(name: str, here: float, limit: float, detail: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "here": here,
        "unit": "",
        "aim": None,
        "at_least": None,
        "at_most": limit,
        "met": bool(here <= limit),
        "detail": detail or f"asked ≤ {limit:g}",
    }


def errors(seeds: int) -> list[dict[str, Any]]:
    """Every target at every order in float64."""
    rows = []
    for target in TARGETS:
        for order, limit in asked(target).items():
            rows += worst_of(f"{target}, order {order}", limit, seeds, to=target, order=order)
            if target == "lstm":
                name = f"{target}, order {order}, d = 2 and nearly cancelling"
                rows += worst_of(name, limit, seeds, sources=[CANCELLING], to=target, order=order)
    return rows


def single(seeds: int) -> list[dict[str, Any]]:
    """The exact targets in float32."""
    exact = [target for target in TARGETS if TARGETS[target].exact]
    return [row for target in exact for row in worst_of(f"{target}, float32", 1e-4, seeds, to=target, dtype="float32")]


def worst_of(
    name: str, limit: float, seeds: int, sources: list[dict[str, int]] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """The largest error over the largest output, and the stated bound over the measured error."""
    sources = sources or [{"d": d, "heads": heads, "seed": seed} for d, heads in SIZES for seed in range(seeds)]
    relative, ratio, below = 0.0, 0.0, np.inf
    for source in sources:
        attention = uh.random_attention(**source)
        compiled = uh.compile(attention, **settings)
        # Against the recurrent attention, in float64, on inputs that the compiler has not seen.
        xs = np.random.default_rng(1000 + source["seed"]).uniform(-4, 4, (1000, attention.d))
        expected = attention(xs)
        fresh = np.abs(np.asarray(compiled.model(xs), np.float64) - expected).max()
        relative = max(relative, compiled.max_rel_error, fresh / np.abs(expected).max())
        worst = max(compiled.max_abs_error, fresh)
        ratio, below = max(ratio, compiled.error_bound / worst), min(below, compiled.error_bound / worst)
    rows = [
        at_most(f"{name}: error", relative, limit, f"{len(sources)} attentions"),
        at_most(f"{name}: bound / error, largest", ratio, 1000, f"smallest {below:.3g}"),
        at_most(f"{name}: error / bound, largest", 1 / below, 1),
    ]
    show("compiler", rows)
    return rows


def large() -> list[dict[str, Any]]:
    attention = uh.random_attention(64, seed=0)
    began = time.perf_counter()
    compiled = uh.compile(attention, to="gated-rnn")
    seconds = time.perf_counter() - began
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    candidates = {}
    for name, model in (("attention", attention), ("network", compiled.model)):
        candidates[name] = _streaming(model), 200
    took = best_seconds(candidates, rounds=20)
    return [
        at_most("d = 64, sparse: seconds to compile and verify", seconds, 10, f"verified: {compiled.verified}"),
        at_most("d = 64, sparse: peak memory in GB, jax included", gigabytes, 1),
        at_most("d = 64, sparse: error", compiled.max_rel_error, 1e-12),
        at_most(
            "d = 64, sparse: a streaming step over the attention's",
            took["network"] / took["attention"],
            3,
            f"{1e6 * took['network']:.1f} µs and {1e6 * took['attention']:.1f} µs, jitted",
        ),
    ]


def _streaming(model: Any) -> Any:
    with jax.enable_x64(True):
        step = jax.jit(lambda state, x: model.step(state, x))
        x, state = jnp.asarray(np.random.default_rng(0).normal(size=64)), model.initial_state()

        def run() -> None:
            current, y = state, None
            for _ in range(200):
                current, y = step(current, x)
            jax.block_until_ready(y)

    def call() -> None:
        with jax.enable_x64(True):
            run()

    return call


def startup() -> list[dict[str, Any]]:
    def call(code: str) -> Any:
        return lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    help_ = "import sys; sys.argv = ['underhood', '--help']; from underhood.cli import main; main()"
    took = best_seconds({"help": (call(help_), 1), "jax": (call("import jax"), 1)}, rounds=7, at_least=0.0)
    detail = f"{took['help']:.2f} s and {took['jax']:.2f} s"
    return [at_most("underhood --help over import jax", took["help"] / took["jax"], 1, detail)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--part", choices=["errors", "float32", "large", "startup"])
    flags = parser.parse_args()
    parts = {
        "startup": startup,
        "large": large,
        "float32": lambda: single(flags.seeds),
        "errors": lambda: errors(flags.seeds),
    }
    rows = [row for name, part in parts.items() if flags.part in (None, name) for row in part()]
    show("compiler", rows)
    store("compiler", rows, {"seeds": flags.seeds, "sizes": SIZES})


if __name__ == "__main__":
    main()
