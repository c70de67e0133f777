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

from underhood.architectures.lstm.cell import CANDIDATE, FORGET, INPUT, LSTM, OUTPUT
from underhood.layers.kernels.dispatch import cell_kernel_for, is_dense, projected
from underhood.layers.kernels.steps import at_step, delayed, put_step, zeros_like_step
from underhood.layers.linear import Linear

ORDER = (FORGET, INPUT, OUTPUT, CANDIDATE)  # what goes through σ stands together: f, g, o, then c̃


@cell_kernel_for(LSTM)
def lstm(cell: LSTM, embedding: Linear | None, xs: Float[Array, "d t b"], last: bool) -> Float[Array, "n t b"] | None:
    """The hidden states of a batch, from a state of zeros; all of them, as each is needed for the next."""
    if cell.v is None or not is_dense(cell.u):
        return None
    u, v, b = (jnp.concatenate([part[gate] for gate in ORDER]) for part in (cell.u, cell.v, cell.b))
    return lstm_states(v, projected(u, b, embedding, xs))


@jax.custom_vjp
def lstm_states(v: Float[Array, "n4 n"], driven: Float[Array, "n4 t b"]) -> Float[Array, "n t b"]:
    """h_1 … h_t from U x + b of all steps."""
    return _forward(v, driven)[0]


def _forward(v: Float[Array, "n4 n"], driven: Float[Array, "n4 t b"]) -> tuple[Float[Array, "n t b"], Any]:
    n, (_, t, b) = v.shape[1], driven.shape

    def body(step: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c, hs, cs, kept = carried
        recurrent = v @ h
        # First the gates are put in their place, then the candidate is read: both in place, without a copy.
        gates = jax.nn.sigmoid(at_step(kept, step)[: 3 * n] + recurrent[: 3 * n])
        kept = put_step(kept, gates, step)
        candidate = jnp.tanh(at_step(kept, step)[3 * n :] + recurrent[3 * n :])
        kept = put_step(kept, candidate, step, 3 * n)
        f, g, o = jnp.split(gates, 3)
        c = f * c + g * candidate
        h = o * jnp.tanh(c)
        return h, c, put_step(hs, h, step), put_step(cs, c, step), kept

    start = jnp.zeros((n, b), driven.dtype)
    states = jnp.zeros((n, t, b), driven.dtype)
    _, _, hs, cs, kept = jax.lax.fori_loop(0, t, body, (start, start, states, states, driven))
    return hs, (v, hs, cs, kept)


def _backward(saved: Any, dhs: Float[Array, "n t b"]) -> tuple[Float[Array, "n4 n"], Float[Array, "n4 t b"]]:
    v, hs, cs, kept = saved
    n, t, b = hs.shape
    f, g, o, candidate = jnp.split(kept, 4)
    squashed = jnp.tanh(cs)
    # What multiplies ∂c (of f, g and c̃) or ∂h (of o) does not depend on either: ahead of the loop, for all steps.
    # A choice by row rather than a concatenation, which the compiler does number by number.
    gate, parts = jnp.arange(4)[:, None, None, None], kept.reshape(4, n, t, b)
    partners = (delayed(cs), candidate, squashed, g)
    partner = jnp.select([gate == k for k in range(4)], [each[None] for each in partners])
    slope = jnp.where(gate == 3, 1 - parts * parts, parts * (1 - parts))
    slopes, into_c = (partner * slope).reshape(4 * n, t, b), o * (1 - squashed * squashed)
    reads_h = (jnp.arange(4 * n) // n == 2)[:, None]
    transposed = v.T

    def body(back: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        dh, dc, dgates = carried
        step = t - 1 - back
        dh = dh + at_step(dhs, step)
        dc = dc + dh * at_step(into_c, step)
        now = at_step(dgates, step) * jnp.where(reads_h, jnp.tile(dh, (4, 1)), jnp.tile(dc, (4, 1)))
        return transposed @ now, dc * at_step(f, step), put_step(dgates, now, step)

    start = zeros_like_step(hs)
    _, _, dgates = jax.lax.fori_loop(0, t, body, (start, start, slopes))
    return recurrent_gradient(dgates, hs), dgates


lstm_states.defvjp(_forward, _backward)


def recurrent_gradient(dgates: Float[Array, "k t b"], hs: Float[Array, "n t b"]) -> Float[Array, "k n"]:
    """Σ_t ∂gates_t h_{t−1}ᵀ, as one product; h_0 = 0 takes the place of the first step."""
    return dgates.reshape(dgates.shape[0], -1) @ delayed(hs).reshape(hs.shape[0], -1).T
