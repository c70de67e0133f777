"""Attentions that teach: random ones (Section 3) and one step of gradient descent (Section 4)."""

from __future__ import annotations

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory


def random_attention(
    d: int,
    *,
    heads: int = 1,
    d_key: int | None = None,
    d_value: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> LinearAttention:
    """W_V, W_K, W_Q with entries N(0, 1/d), the scale chosen in docs/fidelity.md; `rank` limits each of them.

    A matrix of rank r is a product of two Gaussian factors through r dimensions, with the same variance.
    """
    d_key, d_value = d if d_key is None else d_key, d if d_value is None else d_value
    for name, size in {"d": d, "heads": heads, "d_key": d_key, "d_value": d_value}.items():
        if size < 1:
            raise UnderhoodError(f"expected {name} of 1 or more", size)
    largest = min(d, d_key, d_value)
    if rank is not None and not 0 <= rank <= largest:
        raise UnderhoodError(f"expected a rank between 0 and {largest}, the smallest side of the matrices", rank)
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed)
    numbers = heads * d * (d_value + 2 * d_key)
    require_memory(3 * 8 * numbers, f"an attention of {numbers:,} weights")  # drawn, kept, and written to a file
    random = np.random.default_rng(seed)

    def matrix(rows: int) -> np.ndarray:
        if rank is None:
            return random.normal(size=(heads, rows, d)) / np.sqrt(d)
        left, right = random.normal(size=(heads, rows, rank)), random.normal(size=(heads, rank, d))
        return left @ right / np.sqrt(d * max(rank, 1))

    return LinearAttention(matrix(d_value), matrix(d_key), matrix(d_key))


def gradient_descent_attention(d_x: int, d_y: int, eta: float) -> LinearAttention:
    """Eq. 4: ŷ = η Σ_s y_s (x_s · x_t) on elements (x, y): values are η·y, keys and queries are x.

    The output has the element's size d_x + d_y, as the square matrices of the paper do; the prediction
    stands in its last d_y coordinates and the first d_x are zero.
    """
    d = d_x + d_y
    reads_x, reads_y = np.zeros((d, d)), np.zeros((d, d))
    reads_x[:d_x, :d_x] = np.eye(d_x)
    reads_y[d_x:, d_x:] = eta * np.eye(d_y)
    return LinearAttention(reads_y, reads_x, reads_x)
