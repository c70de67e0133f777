"""Today's layers against the public modules' own CPU paths: a training step, and a step of a stream.

    python -m benchmarks layers [mamba …]

A training step is the gradient of a mean square in all weights: batch 64, t = 32, width 64, float32. A stream takes one
input a step, from the state that the last one left; here `jax.jit` of the step. Both sides have the same weights, take
turns in one run, and are timed by the processor time they use, which other programs on the machine do not add to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"NPROC": "1", "OMP_NUM_THREADS": "1"}  # one core each, before either library starts its threads

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import best_seconds, store
from underhood.interop.bridges import bridge_of, to_module
from underhood.model import ARCHITECTURES

BATCH, LENGTH, WIDTH = 64, 32, 64
LAYERS = ("mamba", "griffin", "mingru")
FASTER = 5.0  # what a training step must be


def cell_of(name: str) -> Any:
    """The cell that the architecture has, width in and out."""
    model = ARCHITECTURES[name].make(
        WIDTH, d_out=WIDTH, hidden=WIDTH, layers=1, key=jax.random.key(0), dtype=np.float32
    )
    return model.cells[0]


def training_steps(cell: Any, xs: np.ndarray, wanted: np.ndarray) -> dict[str, Callable[[], Any]]:
    import torch

    bridge, module = bridge_of(cell), to_module(cell).train()
    their_xs, their_wanted = torch.from_numpy(xs), torch.from_numpy(wanted)

    def theirs() -> float:
        module.zero_grad()
        loss = 0.5 * torch.mean((bridge.run(module, their_xs) - their_wanted) ** 2)
        loss.backward()
        return loss.item()

    @eqx.filter_jit
    def gradient(cell: Any, xs: jax.Array, wanted: jax.Array) -> Any:
        return eqx.filter_value_and_grad(lambda cell: 0.5 * jnp.mean((jax.vmap(cell)(xs) - wanted) ** 2))(cell)

    our_xs, our_wanted = jnp.asarray(xs), jnp.asarray(wanted)

    def ours() -> Any:
        return jax.block_until_ready(gradient(cell, our_xs, our_wanted))

    assert abs(float(ours()[0]) - theirs()) <= 1e-5 * abs(theirs())  # the same function, or no comparison
    return {"public": theirs, "here": ours}


def stream_steps(name: str, cell: Any, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """One step from a state; theirs with the cache or state that their module takes for it."""
    compiled, one = jax.jit(lambda state, x: cell.step(state, x)), jnp.asarray(x[4])
    state = [cell.scan(x[:4])[1]]

    def ours() -> Any:
        state[0], y = compiled(state[0], one)
        return jax.block_until_ready(y)

    return {"public": STREAMS[name](to_module(cell), x), "here": ours}


def _mamba_stream(module: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch
    from transformers.cache_utils import DynamicCache

    cache, one = DynamicCache(config=module.config), torch.from_numpy(x[4:5])[None]
    with torch.no_grad():
        module(torch.from_numpy(x[:4])[None], cache_params=cache)

    def step() -> Any:
        with torch.no_grad():
            return module(one, cache_params=cache)

    return step


def _griffin_stream(module: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch

    one, position = torch.from_numpy(x[4:5])[None], torch.tensor([[4]])
    with torch.no_grad():
        module(torch.from_numpy(x[:4])[None], torch.arange(4)[None], None, use_cache=True)
        module.conv1d_state = module.conv1d_state[..., -module.conv1d_width + 1 :]

    def step() -> Any:
        with torch.no_grad():
            return module(one, position, None, use_cache=True)

    return step


def _mingru_stream(module: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch

    one = torch.from_numpy(x[4:5])[None]
    with torch.no_grad():
        state = [module(torch.from_numpy(x[:4])[None], return_next_prev_hidden=True)[1]]

    def step() -> Any:
        with torch.no_grad():
            y, state[0] = module(one, state[0], return_next_prev_hidden=True)
            return y

    return step


STREAMS = {"mamba": _mamba_stream, "griffin": _griffin_stream, "mingru": _mingru_stream}


def main(names: list[str]) -> int:
    random = np.random.default_rng(0)
    xs, wanted = (random.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    rows = []
    for name in names or LAYERS:
        cell = cell_of(name)
        training, stream = (
            best_seconds({which: (step, 1) for which, step in steps.items()}, rounds=10, clock=time.process_time)
            for steps in (training_steps(cell, xs, wanted), stream_steps(name, cell, xs[0]))
        )
        row = {
            "layer": name,
            **{f"training_ms_{which}": round(1e3 * seconds, 3) for which, seconds in training.items()},
            "training_faster": round(training["public"] / training["here"], 1),
            **{f"stream_us_{which}": round(1e6 * seconds, 1) for which, seconds in stream.items()},
            "stream_faster": round(stream["public"] / stream["here"], 2),
        }
        rows.append(row)
        print(row, flush=True)
    store("layers", rows, {"batch": BATCH, "length": LENGTH, "width": WIDTH, "must_be_faster": FASTER})
    return int(any(row["training_faster"] < FASTER or row["stream_faster"] < 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
