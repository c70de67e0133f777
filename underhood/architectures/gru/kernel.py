"""Eq. 16–19 for a batch, features first: reset and update gates in one product a step, the candidate in a second.

As in lstm.py, inputs are projected ahead of the loop and the weights' gradients are products after it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.architectures.gru.cell import CANDIDATE, GRU, RESET, UPDATE
from underhood.architectures.lstm.kernel import recurrent_gradient
from underhood.layers.kernels.dispatch import cell_kernel_for, is_dense, projected
from underhood.layers.kernels.steps import at_step, delayed, put_step, zeros_like_step
from underhood.layers.linear import Linear


@cell_kernel_for(GRU)
def gru(cell: GRU, embedding: Linear | None, xs: Float[Array, "d t b"], last: bool) -> Float[Array, "n t b"] | None:
    """The hidden states of a batch, from a state of zeros; all of them, as each is needed for the next."""
    if not (is_dense(cell.u) and is_dense(cell.v)) or cell.reset == "after":  # torch's reset: read, not trained
        return None
    gates = (RESET, UPDATE)
    u, v, b = (jnp.concatenate([part[k] for k in gates]) for part in (cell.u, cell.v, cell.b))
    driven = projected(cell.u[CANDIDATE], cell.b[CANDIDATE], embedding, xs)
    return gru_states(v, cell.v[CANDIDATE], projected(u, b, embedding, xs), driven)


@jax.custom_vjp
def gru_states(
    v: Float[Array, "n2 n"],
    v_candidate: Float[Array, "n n"],
    driven: Float[Array, "n2 t b"],
    driven_candidate: Float[Array, "n t b"],
) -> Float[Array, "n t b"]:
    """h_1 … h_t from U x + b of all steps."""
    return _forward(v, v_candidate, driven, driven_candidate)[0]


def _forward(
    v: Float[Array, "n2 n"],
    v_candidate: Float[Array, "n n"],
    driven: Float[Array, "n2 t b"],
    driven_candidate: Float[Array, "n t b"],
) -> tuple[Float[Array, "n t b"], Any]:
    n, t, b = driven_candidate.shape

    def body(step: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        h, hs, kept, candidates = carried
        gates = jax.nn.sigmoid(at_step(kept, step) + v @ h)
        reset, update = gates[:n], gates[n:]
        candidate = jnp.tanh(at_step(candidates, step) + v_candidate @ (reset * h))
        h = (1 - update) * h + update * candidate
        return h, put_step(hs, h, step), put_step(kept, gates, step), put_step(candidates, candidate, step)

    states = jnp.zeros((n, t, b), driven.dtype)
    carried = (zeros_like_step(states), states, driven, driven_candidate)
    _, hs, kept, candidates = jax.lax.fori_loop(0, t, body, carried)
    return hs, (v, v_candidate, hs, kept, candidates)


def _backward(saved: Any, dhs: Float[Array, "n t b"]) -> tuple[Array, Array, Array, Array]:
    v, v_candidate, hs, kept, candidates = saved
    n, t, b = hs.shape
    reset, update, before = kept[:n], kept[n:], delayed(hs)
    # Slopes that do not depend on what comes back: ahead of the loop, for all steps.
    of_candidate = update * (1 - candidates * candidates)
    parts, first = kept.reshape(2, n, t, b), jnp.arange(2)[:, None, None, None] == 0
    # A choice by row rather than a concatenation, which the compiler does number by number.
    partner = jnp.where(first, before[None], (candidates - before)[None])
    of_gates, keeps = (partner * parts * (1 - parts)).reshape(2 * n, t, b), 1 - update
    is_reset = (jnp.arange(2 * n) < n)[:, None]
    v_t, candidate_t = v.T, v_candidate.T

    def body(back: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        dh, dgates, dcandidates = carried
        step = t - 1 - back
        dh = dh + at_step(dhs, step)
        dcandidate = dh * at_step(dcandidates, step)
        dgated = candidate_t @ dcandidate
        now = at_step(dgates, step) * jnp.where(is_reset, jnp.tile(dgated, (2, 1)), jnp.tile(dh, (2, 1)))
        dh = dh * at_step(keeps, step) + dgated * at_step(reset, step) + v_t @ now
        return dh, put_step(dgates, now, step), put_step(dcandidates, dcandidate, step)

    carried = (zeros_like_step(hs), of_gates, of_candidate)
    _, dgates, dcandidates = jax.lax.fori_loop(0, t, body, carried)
    dv_candidate = dcandidates.reshape(n, -1) @ (reset * before).reshape(n, -1).T
    return recurrent_gradient(dgates, hs), dv_candidate, dgates, dcandidates


gru_states.defvjp(_forward, _backward)
