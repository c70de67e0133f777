"""Eq. 10–15 for a batch, features first: one product a step for all gates, one after the loop for their weights.

Only V h_{t−1} has to wait for its turn. U x + b of all steps is one product ahead of the loop; the loop back
leaves the gradients of the gates behind, from which ∂V = Σ_t ∂gates_t h_{t−1}ᵀ follows in one product, where
the derivative of a scan would add a matrix to a sum at every step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.cells.linear import Linear
from underhood.cells.lstm import CANDIDATE, FORGET, INPUT, LSTM, OUTPUT
from underhood.fit.kernels.dispatch import cell_kernel_for, is_dense, projected
from underhood.fit.kernels.steps import at_step, delayed, put_step, zeros_like_step


@cell_kernel_for(LSTM)
def lstm(cell: LSTM, embedding: Linear | None, xs: Float[Array, "d t b"]) -> Float[Array, "n t b"] | None:
    """The hidden states of a batch, from a state of zeros."""
    if cell.v is None or not is_dense(cell.u):
        return None
    gates, n = 4, cell.hidden
    driven = projected(cell.u.reshape(gates * n, -1), cell.b.reshape(gates * n), embedding, xs)
    return lstm_states(cell.v.reshape(gates * n, n), driven)


def _activated(gates: Float[Array, "n4 b"]) -> Float[Array, "n4 b"]:
    """f, c̃, g, o of Eq. 10–14 in one pass, with a choice by row.

    One function for all rows would be cheaper, as σ(x) = ½ + ½ tanh(x/2); but it is 0 where σ is 1e-20, which is
    what the gates of a compiled network rely on.
    """
    n = gates.shape[0] // 4
    is_candidate = (jnp.arange(4 * n) // n == CANDIDATE)[:, None]
    return jnp.where(is_candidate, jnp.tanh(gates), jax.nn.sigmoid(gates))


@jax.custom_vjp
def lstm_states(v: Float[Array, "n4 n"], driven: Float[Array, "n4 t b"]) -> Float[Array, "n t b"]:
    """h_1 … h_t from U x + b of all steps."""
    return _forward(v, driven)[0]


def _forward(v: Float[Array, "n4 n"], driven: Float[Array, "n4 t b"]) -> tuple[Float[Array, "n t b"], Any]:
    n, (_, t, b) = v.shape[1], driven.shape

    def body(step: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c, hs, cs, kept = carried
        gates = _activated(at_step(driven, step) + v @ h)
        f, candidate, g, o = (gates[k * n : (k + 1) * n] for k in (FORGET, CANDIDATE, INPUT, OUTPUT))
        c = f * c + g * candidate
        h = o * jnp.tanh(c)
        return h, c, put_step(hs, h, step), put_step(cs, c, step), put_step(kept, gates, step)

    start = jnp.zeros((n, b), driven.dtype)
    states = jnp.zeros((n, t, b), driven.dtype)
    _, _, hs, cs, kept = jax.lax.fori_loop(0, t, body, (start, start, states, states, jnp.zeros_like(driven)))
    return hs, (v, hs, cs, kept)


def _backward(saved: Any, dhs: Float[Array, "n t b"]) -> tuple[Float[Array, "n4 n"], Float[Array, "n4 t b"]]:
    v, hs, cs, kept = saved
    n, t, b = hs.shape
    f, candidate, g, o = (kept[k * n : (k + 1) * n] for k in (FORGET, CANDIDATE, INPUT, OUTPUT))
    squashed = jnp.tanh(cs)
    # What multiplies ∂c (of f, c̃ and g) or ∂h (of o) does not depend on either: ahead of the loop, for all steps.
    # A choice by row rather than a concatenation, which the compiler does number by number.
    gate, parts = jnp.arange(4)[:, None, None, None], kept.reshape(4, n, t, b)
    partner = jnp.where(gate == CANDIDATE, g[None], jnp.where(gate == INPUT, candidate[None], squashed[None]))
    partner = jnp.where(gate == FORGET, delayed(cs)[None], partner)
    slope = jnp.where(gate == CANDIDATE, 1 - parts * parts, parts * (1 - parts))
    stacked, into_c = (partner * slope).reshape(4 * n, t, b), o * (1 - squashed * squashed)
    reads_h = (jnp.arange(4 * n) // n == OUTPUT)[:, None]
    transposed = v.T

    def body(back: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        dh, dc, dgates = carried
        step = t - 1 - back
        dh = dh + at_step(dhs, step)
        dc = dc + dh * at_step(into_c, step)
        now = at_step(stacked, step) * jnp.where(reads_h, jnp.tile(dh, (4, 1)), jnp.tile(dc, (4, 1)))
        return transposed @ now, dc * at_step(f, step), put_step(dgates, now, step)

    start = zeros_like_step(hs)
    _, _, dgates = jax.lax.fori_loop(0, t, body, (start, start, jnp.zeros_like(kept)))
    return weight_gradient(dgates, hs), dgates


lstm_states.defvjp(_forward, _backward)


def weight_gradient(dgates: Float[Array, "k t b"], hs: Float[Array, "n t b"]) -> Float[Array, "k n"]:
    """Σ_t ∂gates_t h_{t−1}ᵀ, as one product; h_0 = 0 takes the place of the first step."""
    return dgates.reshape(dgates.shape[0], -1) @ delayed(hs).reshape(hs.shape[0], -1).T
