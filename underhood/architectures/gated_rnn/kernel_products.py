"""g_in(x̃) = (W_m x̃) ⊙ (W_x x̃) = Q s(x̃): a gating is a linear map of the products x̃_i x̃_j, i ≤ j.

With d + 1 = 5 entries there are 15 products. One product with Q then takes the place of two with W_m and W_x and
of the ⊙ between them, forward and back, and nothing of the size of the branches is kept.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_INPUTS = 12  # with more, the products outgrow what they save


def products(xs: Float[Array, "*k"], axis: int) -> Float[Array, "*q"]:
    """s(x̃): x_i x_j for i ≤ j along `axis`, in the order of the upper triangle."""
    size = xs.shape[axis]
    padding = jnp.zeros_like(jax.lax.slice_in_dim(xs, 0, _padded(size) - size * (size + 1) // 2, axis=axis))
    rows = [jax.lax.slice_in_dim(xs, i, i + 1, axis=axis) for i in range(size)]
    rest = [jax.lax.slice_in_dim(xs, i, size, axis=axis) for i in range(size)]
    return jnp.concatenate([*(row * others for row, others in zip(rows, rest, strict=True)), padding], axis=axis)


def _padded(k: int) -> int:
    """How many products there are, and zeros up to a multiple of four: ∂Q of 15 took 39 µs, of 16 it takes 24."""
    return -(-(k * (k + 1) // 2) // 4) * 4


def quadratic_weights(w_m: Float[Array, "n k"], w_x: Float[Array, "n k"]) -> Float[Array, "n q"]:
    """Q: the coefficient of each product, m_i x_j + m_j x_i off the diagonal and m_i x_i on it."""
    # All m_i x_j, added up by a product with 0 and 1: an index would have a scatter for its derivative.
    n, k = w_m.shape
    i, j = np.triu_indices(k)
    chosen = np.zeros((k, k, _padded(k)))
    chosen[i, j, range(len(i))] = chosen[j, i, range(len(i))] = 1
    every = (w_m[:, :, None] * w_x[:, None, :]).reshape(n, k * k)
    return every @ jnp.asarray(chosen.reshape(k * k, -1), w_m.dtype)


def powers(nu: Float[Array, " n"], t: int) -> Float[Array, "n t"]:
    """λ^0 … λ^{t−1}, as exp(−k exp(ν)); λ^0 is 1 even where λ is 0."""
    return jnp.exp(-jnp.exp(nu)[:, None] * jnp.arange(t, dtype=nu.dtype)[None, :])
