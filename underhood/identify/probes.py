"""1 − R² of the linear regression of key-values on memory neurons, and of queries on forget neurons.

The KV and Q scores of Table 1. On inputs N(0, 1) the regression needs no sample: two quadratic forms with
matrices A and B have covariance 2 tr(AB), linear forms that of their vectors, and quadratic and linear parts
none.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.attention.linear import LinearAttention
from underhood.identify.forms import Array, Reading, pair_indices, product_forms


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
    norms = np.linalg.norm(predictors, axis=1, keepdims=True)
    _, singular, basis = np.linalg.svd(predictors / np.where(norms > 0, norms, 1.0), full_matrices=False)
    basis = basis[singular > 1e-12 * max(singular.max(initial=0.0), 1e-300)]
    residual = targets - (targets @ basis.T) @ basis
    return float(np.mean(np.sum(residual[varies] ** 2, axis=1) / variance[varies]))


def kv_score(reading: Reading, memory: Array, attention: LinearAttention) -> float:
    """Key-values v_i k_j of every head, from the forms that the memory neurons hold."""
    values, keys = (np.asarray(weight, np.float64) for weight in (attention.w_value, attention.w_key))
    padded = [np.concatenate([weight, np.zeros((*weight.shape[:2], 1))], axis=2) for weight in (values, keys)]
    first = np.repeat(padded[0], keys.shape[1], axis=1).reshape(-1, attention.d + 1)
    second = np.tile(padded[1], (1, values.shape[1], 1)).reshape(-1, attention.d + 1)
    return unexplained(product_forms(first, second), np.real(reading.forms[memory]), reading.d)


def read_forms_score(reading: Reading, memory: Array, tensor: Float[Array, "d_out d d d"]) -> float:
    """The KV score where no teacher splits T into heads: the forms T_i[·,·,c] that some output multiplies."""
    d = reading.d
    rows, columns = pair_indices(d + 1)
    quadratic = (rows < d) & (columns < d)
    twice = np.where(rows == columns, 1.0, 2.0)[quadratic]
    forms = np.zeros((tensor.shape[0] * d, len(rows)))
    picked = tensor[:, rows[quadratic], columns[quadratic], :] * twice[None, :, None]
    forms[:, quadratic] = picked.transpose(0, 2, 1).reshape(-1, int(quadratic.sum()))
    return unexplained(forms, np.real(reading.forms[memory]), d)


def q_score(reading: Reading, forget: Array, attention: LinearAttention) -> float:
    """Queries of every head, from the forms that the forget neurons hold."""
    queries = np.asarray(attention.w_query, np.float64).reshape(-1, attention.d)
    linear = np.concatenate([queries, np.zeros((len(queries), 1))], axis=1)
    one = np.zeros_like(linear)
    one[:, -1] = 1.0
    return unexplained(product_forms(linear, one), np.real(reading.forms[forget]), reading.d)
