"""Spans, their intersections and their bases: every decision that two directions are one is made here.

Two tolerances. What comes as exact weights has the rounding of its own matrix and nothing else (`numerical_rank`). What
two spaces share is found through two decompositions, in the decompiler of matrices that were recovered themselves:
SAME_DIRECTION.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from underhood.algebra.quadratic import Array

# Sine of the angle below which two directions are one. A direction that is shared exactly comes back from a network
# within the rounding of its weights times their condition, 1e-16 · 1e5; directions further apart than this show in
# outputs that are verified to 1e-12. The compiler and the decompiler count neurons by it, and so count alike.
SAME_DIRECTION = 1e-10


def numerical_rank(sizes: Float[Array, " k"], shape: tuple[int, ...], noise: float = 0.0) -> int:
    """Singular values above the matrix's relative `noise`, and above what rounding makes of zeros, 16 times over."""
    if sizes.size == 0 or sizes[0] == 0:
        return 0
    return int(np.sum(sizes > sizes[0] * max(noise, max(shape) * 16 * np.finfo(np.float64).eps)))


def row_space(matrix: Float[Array, "k d"], noise: float = 0.0) -> Float[Array, "r d"]:
    """Orthonormal rows that span the rows of `matrix`."""
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    return plain(rows[: numerical_rank(sizes, matrix.shape, noise)])


def plain(rows: Float[Array, "r d"]) -> Float[Array, "r d"]:
    """An orthonormal basis of the whole space may as well be the coordinates: |row·x| is bounded best there."""
    return np.eye(len(rows)) if len(rows) == rows.shape[1] else rows


def factor(matrix: Float[Array, "d q"], noise: float = 0.0) -> tuple[Float[Array, "r d"], Float[Array, "r q"]]:
    """matrix = columnsᵀ @ rows, with orthonormal rows in `columns` and as many as the rank."""
    left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    rank = numerical_rank(sizes, matrix.shape, noise)
    return left[:, :rank].T, sizes[:rank, None] * right[:rank]


def intersect(
    first: Float[Array, "r d"], second: Float[Array, "s d"]
) -> tuple[Float[Array, "o d"], Float[Array, "r_o d"], Float[Array, "s_o d"]]:
    """Orthonormal bases of what two spaces share, and of what each has beyond it; they come as orthonormal rows."""
    # Sines of the principal angles, not cosines: a cosine near 1 hides angles below 1e-8.
    mixing, sines, _ = np.linalg.svd(second - (second @ first.T) @ first)
    apart = np.concatenate([sines, np.zeros(len(second) - len(sines))]) > SAME_DIRECTION
    common, beyond_second = plain(mixing[:, ~apart].T @ second), mixing[:, apart].T @ second
    mixing, _, _ = np.linalg.svd(first - (first @ common.T) @ common)
    return common, mixing[:, : len(first) - len(common)].T @ first, beyond_second


def independent_rows(matrix: Float[Array, "k d"]) -> tuple[Array, Float[Array, "k r"]]:
    """Indices of rows that span all rows, the most independent first, and weights: matrix = weights @ matrix[chosen].

    Rows count by their direction, not by their length.
    """
    norms = np.linalg.norm(matrix, axis=1)
    lengths = np.where(norms > 0, norms, 1.0)
    if not matrix.size or not norms.any():
        return np.zeros(0, int), np.zeros((len(matrix), 0))
    decomposed: Any = scipy.linalg.qr((matrix / lengths[:, None]).T, mode="r", pivoting=True, check_finite=False)
    triangle, order = decomposed
    rank = int(np.sum(np.abs(np.diagonal(triangle)) > SAME_DIRECTION))
    weights = np.zeros((len(matrix), rank))
    weights[order] = scipy.linalg.solve_triangular(triangle[:rank, :rank], triangle[:rank], check_finite=False).T
    chosen = order[:rank]
    return chosen, weights * lengths[:, None] / lengths[chosen]


def orthonormal_rows(matrix: Float[Array, "k d"], noise: float) -> Float[Array, "r d"]:
    """As `row_space`, at a tenth of its cost, where only the span counts; rows count by their direction."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    scaled = (matrix / np.where(norms > 0, norms, 1.0)).T
    decomposed: Any = scipy.linalg.qr(scaled, mode="economic", pivoting=True, check_finite=False)
    basis, triangle, _ = decomposed
    return basis[:, : numerical_rank(np.abs(np.diagonal(triangle)), matrix.shape, noise)].T
