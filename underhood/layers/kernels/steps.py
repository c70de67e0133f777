"""One time step of an array (features, t, b), read and written inside a compiled loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar


def at_step(xs: Float[Array, "n t b"], step: Scalar) -> Float[Array, "n b"]:
    """x_step."""
    return jax.lax.dynamic_index_in_dim(xs, step, axis=1, keepdims=False)


def put_step(xs: Float[Array, "n t b"], x: Float[Array, "k b"], step: Scalar, row: int = 0) -> Float[Array, "n t b"]:
    """`xs` with x_step = `x`, from `row` on; a loop that carries `xs` writes in place."""
    return jax.lax.dynamic_update_slice(xs, x[:, None], (row, step, 0))


def zeros_like_step(xs: Float[Array, "n t b"]) -> Float[Array, "n b"]:
    """A state before the first step."""
    return jnp.zeros((xs.shape[0], xs.shape[2]), xs.dtype)


def delayed(xs: Float[Array, "n t b"]) -> Float[Array, "n t b"]:
    """x_{t−1} in the place of x_t, and zeros in the first: a shift of each row by b numbers."""
    n, t, b = xs.shape
    return jnp.pad(xs.reshape(n, t * b), ((0, 0), (b, 0)))[:, : t * b].reshape(n, t, b)
