"""The plain way to train these networks in jax, kept to be compared with: as a first version would be written.

One jitted step with a vmapped scan, called from a Python loop, with a fresh batch made by NumPy for each step;
optax on the tree of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from underhood.attention.linear import LinearAttention
from underhood.training.tasks.linear_regression import LinearRegression


def gated_rnn(model: Any, xs: Any) -> Any:
    """Eq. 2 for one sequence, with an associative scan over time."""
    extended = jnp.concatenate([xs, jnp.ones((xs.shape[0], 1))], axis=1)
    gate = model.input_gating
    inputs = (extended @ gate.w_m.T) * (extended @ gate.w_x.T)
    factors = jnp.broadcast_to(jnp.exp(-jnp.exp(model.nu)), inputs.shape)

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    h = jax.lax.associative_scan(combine, (factors, inputs))[1]
    gate = model.output_gating
    return ((h @ gate.w_m.T) * (h @ gate.w_x.T)) @ model.readout.T


def lstm(model: Any, xs: Any) -> Any:
    """Eq. 10–15 as they stand, in a scan over the cell."""
    sigma = jax.nn.sigmoid

    def layer(cell: Any, xs: Any) -> Any:
        (u_f, u_c, u_g, u_o), (v_f, v_c, v_g, v_o), (b_f, b_c, b_g, b_o) = cell.u, cell.v, cell.b

        def step(state: Any, x: Any) -> Any:
            h, c = state
            f = sigma(u_f @ x + v_f @ h + b_f)
            candidate = jnp.tanh(u_c @ x + v_c @ h + b_c)
            g = sigma(u_g @ x + v_g @ h + b_g)
            c = f * c + g * candidate
            o = sigma(u_o @ x + v_o @ h + b_o)
            h = o * jnp.tanh(c)
            return (h, c), h

        return jax.lax.scan(step, (jnp.zeros(cell.hidden), jnp.zeros(cell.hidden)), xs)[1]

    return _stacked(model, xs, layer)


def gru(model: Any, xs: Any) -> Any:
    """Eq. 16–19 as they stand, in a scan over the cell."""
    sigma = jax.nn.sigmoid

    def layer(cell: Any, xs: Any) -> Any:
        (u_r, u_h, u_z), (v_r, v_h, v_z), (b_r, b_h, b_z) = cell.u, cell.v, cell.b

        def step(h: Any, x: Any) -> Any:
            r = sigma(u_r @ x + v_r @ h + b_r)
            candidate = jnp.tanh(u_h @ x + v_h @ (r * h) + b_h)
            z = sigma(u_z @ x + v_z @ h + b_z)
            h = (1 - z) * h + z * candidate
            return h, h

        return jax.lax.scan(step, jnp.zeros(cell.hidden), xs)[1]

    return _stacked(model, xs, layer)


def lru(model: Any, xs: Any) -> Any:
    """Eq. 6–9 as they stand, with an associative scan over time."""

    def layer(cell: Any, xs: Any) -> Any:
        into = jnp.exp(cell.gamma_log) * (xs @ (cell.b_real + 1j * cell.b_imag).T)
        factors = jnp.broadcast_to(jnp.exp(-jnp.exp(cell.nu_log) + 1j * jnp.exp(cell.theta_log)), into.shape)

        def combine(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        h = jax.lax.associative_scan(combine, (factors, into))[1]
        read = (h @ (cell.c_real + 1j * cell.c_imag).T).real + xs @ cell.skip.T
        gate = cell.output_gating
        return jax.nn.sigmoid(read @ gate.w_m.T) * (read @ gate.w_x.T)

    return _stacked(model, xs, layer)


def _stacked(model: Any, xs: Any, layer: Callable[[Any, Any], Any]) -> Any:
    signal = xs @ model.embedding.weight.T + model.embedding.bias
    for cell in model.cells:
        signal = layer(cell, signal)
    return signal @ model.readout.weight.T + model.readout.bias


def teacher_batches(attention: LinearAttention, size: int, length: int, seed: int = 0) -> Iterator[Any]:
    """Fresh host batches of Section 3."""
    random = np.random.default_rng(seed)
    w_v, w_k, w_q = (np.asarray(w[0], np.float32) for w in (attention.w_value, attention.w_key, attention.w_query))
    mask = np.tril(np.ones((length, length), np.float32))
    while True:
        xs = random.standard_normal((size, length, attention.d), np.float32)
        scores = (xs @ w_q.T) @ (xs @ w_k.T).transpose(0, 2, 1) * mask
        yield xs, scores @ (xs @ w_v.T)


def regression_batches(task: LinearRegression, size: int, seed: int = 0) -> Iterator[Any]:
    """Fresh host batches of Section 4."""
    random = np.random.default_rng(seed)
    while True:
        w = random.normal(0, task.d_x**-0.5, (size, task.d_y, task.d_x)).astype(np.float32)
        x = random.uniform(-(3**0.5), 3**0.5, (size, task.steps, task.d_x)).astype(np.float32)
        y = x @ w.transpose(0, 2, 1)
        wanted = y[:, -1].copy()
        y[:, -1] = 0
        yield np.concatenate([x, y], axis=-1), wanted


def trainer(model: Any, apply: Callable[..., Any], batches: Iterator[Any], last: bool, steps: int) -> Callable[[], Any]:
    """A function that takes `steps` training steps."""
    schedule = optax.cosine_decay_schedule(1e-3, 781_000, alpha=1e-3)
    optimiser = optax.adamw(schedule, weight_decay=0.1)
    state = {"model": model, "optimiser": optimiser.init(model)}

    def loss(model: Any, xs: Any, wanted: Any) -> Any:
        outputs = jax.vmap(lambda x: apply(model, x))(xs)
        return 0.5 * jnp.mean(((outputs[:, -1] if last else outputs) - wanted) ** 2)

    @jax.jit
    def step(model: Any, moments: Any, xs: Any, wanted: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(model, xs, wanted)
        change, moments = optimiser.update(gradient, moments, model)
        return optax.apply_updates(model, change), moments, value

    def run() -> float:
        for _ in range(steps):
            state["model"], state["optimiser"], value = step(state["model"], state["optimiser"], *next(batches))
        return float(value)

    return run
