"""Random weights: the numbers of jax.random, bit for bit, from few compiled programs.

Entry i of a draw depends on the key and on i alone. So a vector with a power of two of entries is drawn, and cut: jax
compiles a program for each length, which takes longer than all else there is to do for a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from underhood.core.arrays import DType


def normal(key: Array, shape: tuple[int, ...], dtype: DType, scale: float = 1.0) -> Array:
    """N(0, scale²)."""
    return _cut(lambda shape: jax.random.normal(key, shape, dtype), key, shape, np.asarray(scale, dtype))


def uniform(
    key: Array, shape: tuple[int, ...], dtype: DType, low: float | Array = 0.0, high: float | Array = 1.0
) -> Array:
    """From `low` to `high`."""
    return _cut(lambda shape: jax.random.uniform(key, shape, dtype, low, high), key, shape)


def _cut(
    draw: Callable[[tuple[int, ...]], Array], key: Array, shape: tuple[int, ...], scale: np.ndarray | None = None
) -> Array:
    if isinstance(key, jax.core.Tracer):  # part of a program already
        return draw(shape) if scale is None else jnp.multiply(scale, draw(shape))
    count = math.prod(shape)
    drawn = np.asarray(draw((1 << max(0, count - 1).bit_length(),)))[:count].reshape(shape)
    return jnp.asarray(drawn if scale is None else scale * drawn)
