"""Today's layers against the public modules' own CPU paths: a training step, and a step of a stream.

    python -m benchmarks.layers [mamba …] [--threads default]

A training step is the gradient of a mean square in all weights: batch 64, t = 32, width 64, float32, no optimiser. A
stream takes one input a step, from the state that the last one left: `cell.step(state, x)`, arrays of NumPy in and out.
Both sides have the same weights and take turns in one run. With one thread each, they are timed by the processor time
they use, which other programs on the machine do not add to; with the threads that either library takes by itself, by
the clock. `products` is the time of the layer's matrix products alone, forwards and backwards: what is left to gain.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Before either library starts its threads.
os.environ |= {} if "--threads" in sys.argv else {"NPROC": "1", "OMP_NUM_THREADS": "1"}

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import best_seconds, store
from underhood.core.model import ARCHITECTURES
from underhood.interop.bridges import bridge_of
from underhood.interop.torch import to_module

BATCH, LENGTH, WIDTH = 64, 32, 64
ONE_THREAD = "--threads" not in sys.argv
LAYERS = ("mamba", "mamba2", "griffin", "mingru", "gated-deltanet", "mlstm")
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


def products(cell: Any, xs: np.ndarray) -> Callable[[], Any]:
    """W x for every matrix of the weights, x of the right width, and the two products that its gradient takes.

    Block-diagonal weights count as their blocks. The products of states, queries and keys are not in it.
    """
    tokens, random = BATCH * LENGTH, np.random.default_rng(1)
    matrices = [w for leaf in jax.tree.leaves(cell) if leaf.ndim > 1 for w in leaf.reshape(-1, *leaf.shape[-2:])]
    pairs = [
        [jnp.asarray(random.normal(size=(tokens, size)), jnp.float32) for size in w.shape]
        for w in matrices
        if w.shape[1] > 4  # a kernel of a convolution is no matrix
    ]
    matrices = [w for w in matrices if w.shape[1] > 4]

    @jax.jit
    def all_products(matrices: Any, pairs: Any) -> Any:
        return [(x @ w.T, g @ w, g.T @ x) for w, (g, x) in zip(matrices, pairs, strict=True)]

    return lambda: jax.block_until_ready(all_products(matrices, pairs))


def stream_steps(name: str, cell: Any, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """One step from a state; theirs with the cache or state that their module takes for it."""
    state, one = [cell.scan(x[:4])[1]], x[4]

    def ours() -> Any:
        state[0], y = cell.step(state[0], one)
        return y

    return {"public": STREAMS[name](to_module(cell), x), "here": ours}


def _cached_stream(module: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch
    from transformers.cache_utils import DynamicCache

    config = getattr(module, "config", None) or _qwen_config(module)
    cache, one = DynamicCache(config=config), torch.from_numpy(x[4:5])[None]
    with torch.no_grad():
        module(torch.from_numpy(x[:4])[None], cache_params=cache)

    def step() -> Any:
        with torch.no_grad():
            return module(one, cache_params=cache)

    return step


def _qwen_config(module: Any) -> Any:
    """A cache asks the configuration which layers there are; the layer does not keep it."""
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(num_hidden_layers=1, layer_types=["linear_attention"])


def _mlstm_stream(module: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch

    one, state = torch.from_numpy(x[4:5])[None], [{}]

    def step() -> Any:
        with torch.no_grad():
            y, state[0] = module.step(one, **state[0])
            return y

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


STREAMS = {
    "mamba": _cached_stream,
    "mamba2": _cached_stream,
    "gated-deltanet": _cached_stream,
    "griffin": _griffin_stream,
    "mingru": _mingru_stream,
    "mlstm": _mlstm_stream,
}


def main(names: list[str]) -> int:
    random = np.random.default_rng(0)
    xs, wanted = (random.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    clock = time.process_time if ONE_THREAD else time.perf_counter
    rows = []
    for name in names or LAYERS:
        cell = cell_of(name)
        training, stream = (
            best_seconds({which: (step, 1) for which, step in steps.items()}, rounds=10, clock=clock)
            for steps in (
                training_steps(cell, xs, wanted) | {"products": products(cell, xs)},
                stream_steps(name, cell, xs[0]),
            )
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
    settings = {"batch": BATCH, "length": LENGTH, "width": WIDTH, "must_be_faster": FASTER}
    store("layers" if ONE_THREAD else "layers-default-threads", rows, settings)
    return int(any(row["training_faster"] < FASTER or row["stream_faster"] < 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name in LAYERS]))
