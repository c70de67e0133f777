"""(a·x)(b·x) = Σ_{i≤j} f_ij x_i x_j: quadratic forms as vectors over the pairs i ≤ j, and their sums over time.

A hidden neuron of Eq. 2 holds such a form of x̃ = [x, 1], summed over the past with its λ.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact, Shaped

Array = np.ndarray


@lru_cache(maxsize=64)
def pair_indices(size: int) -> tuple[Array, Array]:
    """The pairs (i, j), i ≤ j, that index the monomials x_i x_j; not to be written to."""
    rows, columns = np.triu_indices(size)
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def append_one(xs: Float[Array, "... d"]) -> Float[Array, "... d1"]:
    """x̃ = [x, 1]."""
    return np.concatenate([xs, np.ones((*xs.shape[:-1], 1), xs.dtype)], axis=-1)


def pair_products(xs: Float[Array, "... d"]) -> Float[Array, "... p"]:
    """x_i x_j for all i ≤ j."""
    rows, columns = pair_indices(xs.shape[-1])
    return xs[..., rows] * xs[..., columns]


def product_forms(first: Inexact[Array, "n d"], second: Inexact[Array, "n d"]) -> Inexact[Array, "n p"]:
    """(first·x)(second·x) as coefficients of x_i x_j, i ≤ j."""
    rows, columns = pair_indices(first.shape[1])
    return first[:, rows] * second[:, columns] + (rows != columns) * first[:, columns] * second[:, rows]


def product_slopes(other: Float[Array, "n d"]) -> Float[Array, "n d p"]:
    """∂ product_forms / ∂ one branch, given the other branch."""
    neurons, inputs = other.shape
    rows, columns = pair_indices(inputs)
    entry = np.arange(len(rows))
    slopes = np.zeros((neurons, inputs, len(rows)))
    slopes[:, rows, entry] += other[:, columns]
    slopes[:, columns, entry] += (rows != columns) * other[:, rows]
    return slopes


def fold(tensor: Shaped[Array, "o d d q"]) -> Shaped[Array, "o p q"]:
    """Σ_ij T[i,j] x_i x_j as coefficients of x_i x_j, i ≤ j: T[i,j] + T[j,i] off the diagonal; in long doubles, too."""
    rows, columns = pair_indices(tensor.shape[1])
    return tensor[:, rows, columns] + (rows != columns)[:, None] * tensor[:, columns, rows]


def unfold(folded: Float[Array, "o p q"], d: int) -> Float[Array, "o d d q"]:
    """The symmetric T with these coefficients."""
    rows, columns = pair_indices(d)
    halves = folded * np.where(rows == columns, 1.0, 0.5)[:, None]
    tensor = np.empty((len(folded), d, d, folded.shape[2]))
    tensor[:, rows, columns] = halves
    tensor[:, columns, rows] = halves
    return tensor


def decayed_sums(drive: Inexact[Array, "... t n"], lambda_: Any) -> Inexact[Array, "... t n"]:
    """S_t = λ S_{t-1} + drive_t."""
    sums = np.array(drive, dtype=np.result_type(drive, lambda_, np.float64))
    for t in range(1, sums.shape[-2]):
        sums[..., t, :] += lambda_ * sums[..., t - 1, :]
    return sums


def decayed_length(lambda_: Any, steps: int) -> Array:
    """Σ_{s<T} λ^s for λ in [0, 1]: how many inputs a neuron adds up; (1 − λ^T)/(1 − λ) without its cancellation."""
    lambda_ = np.asarray(lambda_, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.log1p(lambda_ - 1)  # λ − 1 is exact from ½ on
        return np.where(lambda_ == 1, float(steps), np.expm1(steps * rate) / np.expm1(rate))
