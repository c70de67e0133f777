"""Eq. 6–9 for a batch, features first: the complex recurrence in real arithmetic, step by step.

Its gradient runs the same loop backwards in time with the conjugate of λ, and what λ gets follows from both in one sum.
Products with λ^{t−s} for each neuron, one small matrix after the other, take three times as long as the loops.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.cells.linear import Linear
from underhood.cells.lru import LRU
from underhood.fit.kernels.columns import columns
from underhood.fit.kernels.dispatch import cell_kernel_for, is_dense
from underhood.fit.kernels.steps import at_step, delayed, put_step


@cell_kernel_for(LRU)
def lru(cell: LRU, embedding: Linear | None, xs: Float[Array, "d t b"]) -> Float[Array, "d_o t b"] | None:
    """The outputs of a batch, from a state of zeros."""
    gatings = [gating for gating in (cell.input_gating, cell.output_gating) if gating is not None]
    weights = [w for gating in gatings for w in (gating.w_m, gating.w_x)]
    if not all(map(is_dense, (*weights, cell.b_real, cell.b_imag, cell.c_real, cell.c_imag, cell.skip))):
        return None
    inputs, made = xs.reshape(len(xs), -1), None
    if embedding is not None:
        inputs = jnp.concatenate([inputs, jnp.ones((1, inputs.shape[1]), inputs.dtype)])
        made = jnp.concatenate([embedding.weight, embedding.bias[:, None]], axis=1)

    def of_x(*weights: Array) -> Float[Array, "k columns"]:
        """W x of every step. W E comes first, which is small: the embedded sequence is never made."""
        weight = jnp.concatenate(weights)
        return columns(weight if made is None else weight @ made, inputs)

    gamma = jnp.exp(cell.gamma_log)[:, None]
    of_u = (gamma * cell.b_real, gamma * cell.b_imag, cell.skip)
    if cell.input_gating is None:
        driven = of_x(*of_u)
    else:
        driven = jnp.concatenate(of_u) @ _gated(of_x(cell.input_gating.w_m, cell.input_gating.w_x))
    into, skipped = jnp.split(driven, [2 * cell.hidden])
    size, angle = jnp.exp(-jnp.exp(cell.nu_log)), jnp.exp(cell.theta_log)
    h = states(size * jnp.cos(angle), size * jnp.sin(angle), into.reshape(-1, *xs.shape[1:]))
    read = jnp.concatenate([cell.c_real, -cell.c_imag], axis=1) @ h.reshape(len(into), -1) + skipped
    w_m, w_x = cell.output_gating.w_m, cell.output_gating.w_x
    if cell.form == "in-skip":
        outputs = jax.nn.sigmoid(of_x(w_m)) * (w_x @ read)
    else:
        outputs = _gated(jnp.concatenate([w_m, w_x]) @ read)
    return outputs.reshape(-1, *xs.shape[1:])


def _gated(both: Float[Array, "k2 columns"]) -> Float[Array, "k columns"]:
    """σ(W_m ·) ⊙ (W_x ·) of both, one under the other."""
    m, x = jnp.split(both, 2)
    return jax.nn.sigmoid(m) * x


@jax.custom_vjp
def states(
    along: Float[Array, " n"], across: Float[Array, " n"], into: Float[Array, "n2 t b"]
) -> Float[Array, "n2 t b"]:
    """h_1 … h_t with λ = along + i across: real parts, then imaginary parts, of what goes in and what comes out."""
    return _run(along, across, into, back=False)


def _run(along: Array, across: Array, into: Float[Array, "n2 t b"], *, back: bool) -> Float[Array, "n2 t b"]:
    """h = λ h + into, from the first step on or, going back, from the last."""
    n, (_, t, b) = len(along), into.shape
    along, across = along[:, None], across[:, None]

    def body(index: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        real, imag, hs = carried
        step = t - 1 - index if back else index
        now = at_step(into, step)
        real, imag = along * real - across * imag + now[:n], along * imag + across * real + now[n:]
        return real, imag, put_step(hs, jnp.concatenate([real, imag]), step)

    start = jnp.zeros((n, b), into.dtype)
    return jax.lax.fori_loop(0, t, body, (start, start, jnp.zeros_like(into)))[2]


def _forward(along: Array, across: Array, into: Array) -> tuple[Array, tuple[Array, ...]]:
    hs = states(along, across, into)
    return hs, (along, across, hs)


def _backward(saved: tuple[Array, ...], dhs: Float[Array, "n2 t b"]) -> tuple[Array, Array, Array]:
    along, across, hs = saved
    dinto = _run(along, -across, dhs, back=True)
    (real, imag), (dreal, dimag) = jnp.split(delayed(hs), 2), jnp.split(dinto, 2)
    dalong, dacross = dreal * real + dimag * imag, dimag * real - dreal * imag
    return dalong.sum(axis=(1, 2)), dacross.sum(axis=(1, 2)), dinto


states.defvjp(_forward, _backward)
