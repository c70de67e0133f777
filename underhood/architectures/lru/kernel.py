"""Eq. 6–9 for a batch, features first: the complex recurrence in real arithmetic, step by step.

Its gradient runs the same loop backwards in time with the conjugate of λ, and what λ gets follows from both in one sum.
Products with λ^{t−s} for each neuron, one small matrix after the other, take three times as long as the loops.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.architectures.lru.cell import LRU
from underhood.layers.kernels.columns import columns, row_sums
from underhood.layers.kernels.dispatch import cell_kernel_for, is_dense
from underhood.layers.kernels.steps import at_step, put_step
from underhood.layers.linear import Linear


@cell_kernel_for(LRU)
def lru(cell: LRU, embedding: Linear | None, xs: Float[Array, "d t b"], last: bool) -> Float[Array, "d_o s b"] | None:
    """The outputs of a batch, from a state of zeros."""
    gatings = [gating for gating in (cell.input_gating, cell.output_gating) if gating is not None]
    weights = [w for gating in gatings for w in (gating.w_m, gating.w_x)]
    if not all(map(is_dense, (*weights, cell.b_real, cell.b_imag, cell.c_real, cell.c_imag, cell.skip))):
        return None
    inputs, made = xs.reshape(len(xs), -1), None
    if embedding is not None:
        inputs = jnp.concatenate([inputs, jnp.ones((1, inputs.shape[1]), inputs.dtype)])
        made = jnp.concatenate([embedding.weight, embedding.bias[:, None]], axis=1)

    def of(inputs: Float[Array, "d columns"], *weights: Array) -> Float[Array, "k columns"]:
        """W x of every step. W E comes first, which is small: the embedded sequence is never made."""
        weight = jnp.concatenate(weights)
        return columns(weight if made is None else columns(weight, made), inputs)

    def read(xs: Float[Array, "k columns"]) -> Float[Array, "k read"]:
        """The columns whose output is asked for. What comes before them passes through the recurrence alone."""
        return xs[:, -batch:] if last else xs

    batch, gamma, gating = xs.shape[2], jnp.exp(cell.gamma_log)[:, None], cell.input_gating
    into_h = (gamma * cell.b_real, gamma * cell.b_imag)
    if gating is None:
        into, skipped = of(inputs, *into_h), of(read(inputs), cell.skip)
    else:
        u = _gated(of(inputs, gating.w_m, gating.w_x))
        into, skipped = columns(jnp.concatenate(into_h), u), columns(cell.skip, read(u))
    size, angle = jnp.exp(-jnp.exp(cell.nu_log)), jnp.exp(cell.theta_log)
    h = states(size * jnp.cos(angle), size * jnp.sin(angle), into.reshape(-1, *xs.shape[1:]))
    c = jnp.concatenate([cell.c_real, -cell.c_imag], axis=1)
    y = columns(c, read(h.reshape(len(into), -1))) + skipped
    w_m, w_x = cell.output_gating.w_m, cell.output_gating.w_x
    if cell.form == "in-skip":
        outputs = jax.nn.sigmoid(of(read(inputs), w_m)) * columns(w_x, y)
    else:
        outputs = _gated(columns(jnp.concatenate([w_m, w_x]), y))
    return outputs.reshape(len(outputs), -1, batch)


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
    """h = λ h + into, from the first step on or, going back, from the last; each h takes the place of what went in."""
    n, (_, t, b) = len(along), into.shape
    along, across = along[:, None], across[:, None]

    def body(index: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        real, imag, hs = carried
        step = t - 1 - index if back else index
        now = at_step(hs, step)
        real, imag = along * real - across * imag + now[:n], along * imag + across * real + now[n:]
        return real, imag, put_step(hs, jnp.concatenate([real, imag]), step)

    start = jnp.zeros((n, b), into.dtype)
    return jax.lax.fori_loop(0, t, body, (start, start, into))[2]


def _forward(along: Array, across: Array, into: Array) -> tuple[Array, tuple[Array, ...]]:
    hs = states(along, across, into)
    return hs, (along, across, hs)


def _backward(saved: tuple[Array, ...], dhs: Float[Array, "n2 t b"]) -> tuple[Array, Array, Array]:
    along, across, hs = saved
    dinto = _run(along, -across, dhs, back=True)
    n, before, after = len(along), hs[:, :-1], dinto[:, 1:]
    dalong = row_sums(after[:n] * before[:n] + after[n:] * before[n:])
    dacross = row_sums(after[n:] * before[:n] - after[:n] * before[n:])
    return dalong, dacross, dinto


states.defvjp(_forward, _backward)
