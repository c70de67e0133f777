"""1 − R² of the linear regression of key-values on memory neurons, and of queries on forget neurons.

The KV and Q scores of Table 1. On inputs N(0, 1) the regression needs no sample: two quadratic forms with
matrices A and B have covariance 2 tr(AB), linear forms that of their vectors, and quadratic and linear parts
none.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, fold, pair_indices, product_forms
from underhood.algebra.subspaces import orthonormal_rows
from underhood.attention.linear import LinearAttention
from underhood.decompiler.from_weights.reading import Reading


def _standardised(forms: Float[Array, "k p"], d: int) -> Float[Array, "k p"]:
    """Coordinates in which the covariance of two forms is their dot product; constants have none."""
    rows, columns = pair_indices(d + 1)
    weight = np.where((rows == columns) & (rows < d), np.sqrt(2.0), 1.0)
    return forms * np.where((rows == d) & (columns == d), 0.0, weight)


def unexplained(targets: Float[Array, "k p"], predictors: Float[Array, "n p"], d: int) -> float:
    """1 − R² of the linear regression of forms on forms, averaged over the targets that vary at all."""
    targets, predictors = _standardised(targets, d), _standardised(predictors, d)
    variance = np.sum(targets**2, axis=1)
    varies = variance > 1e-24 * max(variance.max(initial=0.0), 1e-300)
    if not varies.any():
        return 0.0
    if not len(predictors):
        return 1.0
    basis = orthonormal_rows(predictors, 1e-12)
    residual = targets - (targets @ basis.T) @ basis
    return float(np.mean(np.sum(residual[varies] ** 2, axis=1) / variance[varies]))


def kv_score(reading: Reading, memory: Array, attention: LinearAttention) -> float:
    """Key-values v_i k_j of every head, from the forms that the memory neurons hold."""
    values, keys = (np.asarray(weight, np.float64) for weight in (attention.w_value, attention.w_key))
    padded = [np.concatenate([weight, np.zeros((*weight.shape[:2], 1))], axis=2) for weight in (values, keys)]
    first = np.repeat(padded[0], keys.shape[1], axis=1).reshape(-1, attention.d + 1)
    second = np.tile(padded[1], (1, values.shape[1], 1)).reshape(-1, attention.d + 1)
    return unexplained(product_forms(first, second), np.real(reading.forms[memory]), reading.d)


def read_forms_score(reading: Reading, memory: Array, attention: LinearAttention) -> float:
    """The KV score where no teacher splits T into heads: the forms T_i[·,·,c] that some output multiplies."""
    d, values, key_query = reading.d, np.asarray(attention.w_value, np.float64), attention.key_query
    forms = np.zeros((attention.d_out, d, len(reading.degree)))
    for output in range(attention.d_out):
        one = fold(np.einsum("ha,hbc->abc", values[:, output], key_query)[None])[0]
        forms[output][:, reading.degree == 2] = one.T
    return unexplained(forms.reshape(-1, forms.shape[2]), np.real(reading.forms[memory]), d)


def q_score(reading: Reading, forget: Array, attention: LinearAttention) -> float:
    """Queries of every head, from the forms that the forget neurons hold."""
    queries = np.asarray(attention.w_query, np.float64).reshape(-1, attention.d)
    linear = np.concatenate([queries, np.zeros((len(queries), 1))], axis=1)
    one = np.zeros_like(linear)
    one[:, -1] = 1.0
    return unexplained(product_forms(linear, one), np.real(reading.forms[forget]), reading.d)
