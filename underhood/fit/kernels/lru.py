"""Eq. 6–9 for a batch, features first: the complex recurrence is a product with λ^{t−s} in real arithmetic.

With Λ = R + iJ, h = Λ g is R and J times both parts of g laid side by side: two products of real matrices for each
neuron and no loop over time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.cells.gated_rnn import Gating
from underhood.cells.linear import Linear
from underhood.cells.lru import LRU
from underhood.fit.kernels.dispatch import affine, cell_kernel_for, is_dense
from underhood.fit.kernels.gated_rnn import LONGEST, _circulant


@cell_kernel_for(LRU)
def lru(cell: LRU, embedding: Linear | None, xs: Float[Array, "d t b"]) -> Float[Array, "d_o t b"] | None:
    """The outputs of a batch, from a state of zeros."""
    gatings = [gating for gating in (cell.input_gating, cell.output_gating) if gating is not None]
    if xs.shape[1] > LONGEST or not all(is_dense(w) for gating in gatings for w in (gating.w_m, gating.w_x)):
        return None
    if not all(map(is_dense, (cell.b_real, cell.b_imag, cell.c_real, cell.c_imag, cell.skip))):
        return None
    x = xs if embedding is None else affine(embedding.weight, embedding.bias, xs)
    _, t, b = x.shape
    x = x.reshape(-1, t * b)
    u = x if cell.input_gating is None else glu_columns(cell.input_gating, x, x)
    gamma = jnp.exp(cell.gamma_log)[:, None]
    into = jnp.concatenate([gamma * cell.b_real, gamma * cell.b_imag]) @ u
    h = states(cell, into.reshape(2, -1, t, b))
    read = jnp.concatenate([cell.c_real, -cell.c_imag, cell.skip], axis=1) @ jnp.concatenate([h.reshape(-1, t * b), u])
    return glu_columns(cell.output_gating, x if cell.form == "in-skip" else read, read).reshape(-1, t, b)


def glu_columns(gating: Gating, m: Float[Array, "a k"], x: Float[Array, "c k"]) -> Float[Array, "d_o k"]:
    """σ(W_m m) ⊙ (W_x x) of each column."""
    if m is x:
        both = jnp.concatenate([gating.w_m, gating.w_x]) @ x
        return jax.nn.sigmoid(both[: len(gating.w_m)]) * both[len(gating.w_m) :]
    return jax.nn.sigmoid(gating.w_m @ m) * (gating.w_x @ x)


def states(cell: LRU, into: Float[Array, "2 n t b"]) -> Float[Array, "2 n t b"]:
    """h_1 … h_t, real parts and imaginary parts."""
    t, b = into.shape[2:]
    steps = jnp.arange(t, dtype=into.dtype)[None, :]
    modulus = jnp.exp(-jnp.exp(cell.nu_log)[:, None] * steps)
    phase = jnp.exp(cell.theta_log)[:, None] * steps
    real, imaginary = (_lower(modulus * part(phase)) for part in (jnp.cos, jnp.sin))
    both = jnp.concatenate([into[0], into[1]], axis=2)
    by_real, by_imaginary = real @ both, imaginary @ both
    return jnp.stack(
        [by_real[..., :b] - by_imaginary[..., b:], by_real[..., b:] + by_imaginary[..., :b]],
    )


def _lower(table: Float[Array, "n t"]) -> Float[Array, "n t t"]:
    """M[t, s] = table[t − s] for s ≤ t, and 0 above."""
    zeros = jnp.zeros_like(table)
    return _circulant(jnp.concatenate([table[:, :1], zeros, table[:, :0:-1]], axis=1), table.shape[1])
