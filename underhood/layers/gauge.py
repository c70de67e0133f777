"""The same function in other weights: a signal between two layers may be permuted, flipped and scaled.

Networks compiled to LSTM, GRU and LRU work by differences that nearly cancel: a mixing that rounds would show in their
output. Signs and powers of two round nothing; a permutation only changes the order of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from underhood.layers.linear import Matrix, dense

POWERS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
SIGNS = (-1.0, 1.0)


class Signal(NamedTuple):
    """How a signal changed: entry i is now scale_i times what was entry order_i."""

    order: Int[np.ndarray, " n"]
    scale: Float[np.ndarray, " n"]

    @classmethod
    def random(cls, random: np.random.Generator, size: int, factors: tuple[float, ...] = POWERS) -> Signal:
        return cls(random.permutation(size), random.choice(factors, size))

    def of(self, rows: Matrix) -> np.ndarray:
        """The rows that make the changed signal."""
        array = np.asarray(dense(rows))[self.order]
        return array * self.scale.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)

    def read(self, weight: Matrix) -> np.ndarray:
        """The matrix that reads the changed signal as `weight` read the old one."""
        array = np.asarray(dense(weight))
        return (array[..., self.order] / self.scale).astype(array.dtype)
