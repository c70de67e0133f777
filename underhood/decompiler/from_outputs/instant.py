"""c(x) = Σ_h V_h x (xᵀ S_h x): heads of decay 0, which see nothing but the step's own input.

Only the symmetric part S of M = W_KᵀW_Q shows. Given S, the best V is a linear regression, and given V the best S is
one: alternating least squares, from several starts, since few inputs leave room for wrong answers.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads
from underhood.algebra.quadratic import Array, pair_indices

MOST_HEADS, STARTS, STEPS = 4, 8, 200
EXACT = 1e-11  # relative: where the search may stop
STALLED = 0.7  # over ten steps, for an error that still falls
SAMPLES = 3  # tokens for each number of S, and at least
FEWEST = 256
MOST_NUMBERS = 1 << 25  # of all products of two inputs of all tokens


def tokens_needed(d: int) -> int | None:
    """How many tokens tell; None where their products would be too many."""
    pairs = d * (d + 1) // 2
    count = max(FEWEST, SAMPLES * MOST_HEADS * pairs)
    return count if count * pairs <= MOST_NUMBERS else None


def instant_heads(
    xs: Float[Array, "n d"], ys: Float[Array, "n d_out"], tolerance: float, seed: int = 0
) -> Heads | None:
    """The fewest heads whose relative error is within the tolerance; None if there are not few such."""
    random, size = np.random.default_rng(seed), float(np.linalg.norm(ys))
    first, second = pair_indices(xs.shape[1])
    products = xs[:, first] * xs[:, second]
    if size == 0:
        return None
    for count in range(1, MOST_HEADS + 1):
        for _ in range(STARTS):
            values, forms, error = _descended(xs, ys / size, products, random.standard_normal((count, len(first))))
            if error <= tolerance:
                key_query = np.zeros((count, xs.shape[1], xs.shape[1]))
                key_query[:, first, second] += forms / 2
                key_query[:, second, first] += forms / 2
                return Heads(values * size, key_query, error)
    return None


def _descended(xs: Array, ys: Array, products: Array, forms: Array) -> tuple[Array, Array, float]:
    """V, S and what they leave over, once that no longer falls."""
    errors: list[float] = []
    while True:
        values, left = _best_values(xs, ys, products @ forms.T)
        errors.append(float(np.linalg.norm(left)))
        stalled = len(errors) > 10 and errors[-1] > STALLED * errors[-11]
        if errors[-1] <= EXACT or stalled or len(errors) == STEPS:
            return values, forms, errors[-1]
        forms = _best_forms(xs, ys, products, values)


def _best_values(xs: Array, ys: Array, scores: Float[Array, "n h"]) -> tuple[Float[Array, "h d_out d"], Array]:
    rows = (scores[:, :, None] * xs[:, None]).reshape(len(xs), -1)
    weights = np.linalg.lstsq(rows, ys, rcond=None)[0]
    return weights.reshape(scores.shape[1], xs.shape[1], -1).transpose(0, 2, 1), rows @ weights - ys


def _best_forms(xs: Array, ys: Array, products: Array, values: Array) -> Float[Array, "h p"]:
    """The normal equations, which need no row for each output."""
    valued = np.einsum("nd,hod->hno", xs, values)
    weights = np.einsum("hno,gno->hgn", valued, valued)
    blocks = [[products.T @ (weight[:, None] * products) for weight in row] for row in weights]
    matrix, wanted = np.block(blocks), products.T @ np.einsum("hno,no->nh", valued, ys)
    matrix[np.diag_indices(len(matrix))] += 1e-14 * np.trace(matrix) / len(matrix)
    return np.linalg.solve(matrix, wanted.T.ravel()).reshape(len(values), -1)
