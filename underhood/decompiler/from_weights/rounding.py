"""γ_n = nu/(1 − nu): what floating point adds to a gated RNN, and to an attention, within a box and a horizon.

Sums of n products are bounded in any order. A state that λ forgets rounds at every step what it holds by then: a
geometric sum of geometric sums, in closed form, so that a horizon of 10⁹ costs what one of 10 does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, decayed_length
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.decompiler.from_weights.reading import Reading
from underhood.layers.linear import dense


def _gamma(count: Any, unit: float) -> Any:
    return count * unit / (1 - count * unit)


def _magnitude(matrix: Any) -> tuple[Array, Array]:
    """|W|, and the number of products that each row adds up: zeros round nothing."""
    array = np.abs(np.asarray(dense(matrix), np.float64))
    return array, np.count_nonzero(array, axis=1)


def network_rounding(model: GatedRNN, reading: Reading, bound: float, horizon: int) -> Float[Array, " d_out"]:
    unit = reading.unit
    box = np.append(np.full(reading.d, bound), 1.0)
    (first, first_count), (second, second_count) = (
        _magnitude(branch) for branch in (model.input_gating.w_m, model.input_gating.w_x)
    )
    drive = (first @ box) * (second @ box)
    cast = 2 if unit > 1e-12 else 0  # inputs of float64 rounded to the weights' float32
    drive_error = drive * (_gamma(first_count, unit) + _gamma(second_count, unit) + (1 + cast) * unit)
    error, state = _accumulated(drive, drive_error, reading.lambda_, unit, horizon)
    (left, left_count), (right, right_count) = (
        _magnitude(branch) for branch in (model.output_gating.w_m, model.output_gating.w_x)
    )
    # A reading is bounded by its neurons, and by its form once they have cancelled. Its own rounding knows of
    # no cancelling; the errors of the states do, for they reach the output through its derivative.
    sizes, errors = [], []
    for weights, magnitude, count in ((reading.left, left, left_count), (reading.right, right, right_count)):
        gross = magnitude @ state
        errors.append(_gamma(count, unit) * gross)
        sizes.append(np.minimum(gross, _largest(reading, weights, bound, horizon) + 1e-12 * gross))
    readout, count = _magnitude(model.readout)
    product = sizes[0] * sizes[1]
    product_error = errors[0] * sizes[1] + sizes[0] * errors[1] + unit * product
    through_states = [_slope(reading, row, sizes, (left, right), bound, horizon) @ error for row in reading.readout]
    second = (left @ error + errors[0]) * (right @ error + errors[1])
    return np.array(through_states) + readout @ (product_error + second) + _gamma(count, unit) * (readout @ product)


def _largest(reading: Reading, weights: Float[Array, "m n"], bound: float, horizon: int) -> Float[Array, " m"]:
    """The largest |w·h| in the box, neurons of equal λ added up first."""
    reach = bound ** reading.degree.astype(float)
    total = np.zeros(len(weights))
    for value in np.unique(reading.lambda_):
        group = reading.lambda_ == value
        form = np.abs(weights[:, group] @ reading.forms[group]) @ reach
        total += form * decayed_length(value, horizon)
    return total


def _slope(
    reading: Reading,
    row: Array,
    sizes: list[Array],
    magnitudes: tuple[Array, Array],
    bound: float,
    horizon: int,
) -> Float[Array, " n"]:
    """The largest |∂y/∂h_i| in the box."""
    gross = (np.abs(row) * sizes[1]) @ magnitudes[0] + (np.abs(row) * sizes[0]) @ magnitudes[1]
    if reading.hidden > 400:
        return gross
    curvature = (reading.left.T * row) @ reading.right
    net = _largest(reading, (curvature + curvature.T), bound, horizon)
    return np.minimum(gross, net + 1e-12 * gross)


def _accumulated(drive: Array, drive_error: Array, lambda_: Array, unit: float, horizon: int) -> tuple[Array, Array]:
    """Error and size of h_T after T steps of h ← λh + drive in floating point."""
    exact = (lambda_ == 0) | (lambda_ == 1)
    # A λ that is neither 0 nor 1 rounds in its own product, and is itself known to a few units only.
    per_step = np.where(lambda_ == 0, 0.0, np.where(exact, unit, 2 * unit)) + np.where(exact, 0.0, 4 * unit)
    # The first step adds to zero, exactly; the others round what is there by then.
    state = drive * decayed_length(lambda_, horizon)
    return drive_error * decayed_length(lambda_, horizon) + per_step * drive * _lengths_sum(lambda_, horizon), state


def _lengths_sum(lambda_: Array, horizon: int) -> Array:
    """Σ_{t=2}^T λ^{T-t} S_t with S_t = Σ_{s<t} λ^s: all that a neuron holds, step by step, as it is forgotten."""
    before, steps = decayed_length(lambda_, horizon - 1) if horizon > 1 else np.zeros_like(lambda_), float(horizon)
    whole = steps * (steps + 1) / 2 - 1  # of λ = 1, and a bound on all others
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = (before - (steps - 1) * lambda_**steps) / (1 - lambda_)
    # Where T (1 − λ) is small, the closed form is a difference of nearly equal numbers.
    return np.where(steps * (1 - lambda_) < 1e-4, whole, np.minimum(closed * (1 + 1e-9), whole))


def attention_rounding(attention: LinearAttention, bound: float, horizon: int) -> Float[Array, " d_out"]:
    unit = float(np.finfo(attention.dtype).eps) / 2
    d = attention.d
    values, keys, queries = (
        np.abs(np.asarray(weight, np.float64)).sum(axis=2) * bound
        for weight in (attention.w_value, attention.w_key, attention.w_query)
    )
    decay = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    drive = values[:, :, None] * keys[:, None, :]
    error, state = _accumulated(
        drive, drive * (2 * _gamma(d, unit) + unit), decay[:, None, None] * np.ones_like(drive), unit, horizon
    )
    count = attention.heads * attention.d_key + 1
    rest = _gamma(d, unit) + _gamma(count, unit)
    return np.einsum("hvk,hk->v", error, queries) * (1 + rest) + rest * np.einsum("hvk,hk->v", state, queries)
