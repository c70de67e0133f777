"""|y_network(t) − y_attention(t)| ≤ max_abs_error for all sequences within ±r and t ≤ T, from the weights.

Three parts add up, each a sum of absolute values of coefficients, so that it holds for all inputs at once:

    terms       what the network has and the recovered attention has not, with each λ at its ideal value: the
                coefficients are summed over all neurons first, so that what cancels costs nothing
    fading      λ near but not at its ideal value: Σ_l |λ^l − ideal^l| bounds how far a state can be off
    rounding    floating point in the network and in the attention, after γ_n = nu/(1 − nu) for every sum of n
                products in any order

A monomial x_a x_b x_c is at most r³, and a memory of T steps at most T r²: the bound is met within a small
factor by an input that repeats one corner of the box, which a search finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, decayed_length, fold
from underhood.attention.linear import LinearAttention
from underhood.cells.gated_rnn import GatedRNN
from underhood.cells.linear import dense
from underhood.identify.forms import Reading
from underhood.identify.polynomial import quartic
from underhood.identify.temporal import Structure

# Long doubles have no BLAS: worth it up to this many multiplications, since they make the rounding of the
# analysis itself vanish beside that of the network.
LONG_DOUBLE_WORK = 3e7
MOST_GROUPS = 40


@dataclass(frozen=True)
class Certificate:
    """For |x| ≤ input_bound and t ≤ horizon, no output differs by more than max_abs_error."""

    input_bound: float
    horizon: int
    max_abs_error: float
    terms: float
    fading: float
    rounding: float

    def as_data(self) -> dict[str, float]:
        return {
            "input_bound": self.input_bound,
            "horizon": self.horizon,
            "max_abs_error": self.max_abs_error,
        }


def certify(
    model: GatedRNN,
    reading: Reading,
    structure: Structure,
    attention: LinearAttention,
    *,
    input_bound: float,
    horizon: int,
) -> Certificate:
    """Bound the distance between a gated RNN and the attention recovered from it."""
    terms, fading = _function_gap(reading, structure, attention, input_bound, horizon)
    rounding = _network_rounding(model, reading, input_bound, horizon)
    rounding = rounding + _attention_rounding(attention, input_bound, horizon)
    worst = int(np.argmax(terms + fading + rounding))
    # The bound itself is computed in floating point: a part in a million covers that many times over.
    total = float((terms + fading + rounding)[worst]) * (1 + 1e-6)
    return Certificate(input_bound, horizon, total, float(terms[worst]), float(fading[worst]), float(rounding[worst]))


def _function_gap(
    reading: Reading, structure: Structure, attention: LinearAttention, bound: float, horizon: int
) -> tuple[Float[Array, " d_out"], Float[Array, " d_out"]]:
    groups = [*structure.memory, structure.forget]
    ideals = np.append(np.asarray(structure.decays), 0.0)
    work = sum(len(group) for group in groups) * reading.pre_readout * reading.forms.shape[1]
    kind = np.longdouble if work * (1 + reading.d_out / 4) < LONG_DOUBLE_WORK else np.float64
    sides = [
        [weights[:, group].astype(kind) @ reading.forms[group].astype(kind) for group in groups]
        for weights in (reading.left, reading.right)
    ]
    readout = reading.readout.astype(kind)
    reach = bound ** reading.degree.astype(float)
    targets = _targets(attention, structure.decays, kind)
    terms = np.zeros(reading.d_out)
    for g in range(len(groups)):
        for other in range(g, len(groups)):
            block = _block(readout, sides[0][g], sides[1][other])
            if g != other:
                block = block + _block(readout, sides[0][other], sides[1][g]).transpose(0, 2, 1)
            terms += _block_bound(reading, block, (g, other), targets, ideals, bound, horizon)
    if kind is np.float64:
        # The analysis rounds too: γ_n of the sums above, on everything before it cancels.
        left, right = (sum(np.abs(part) @ reach for part in side) for side in sides)
        gross = np.abs(reading.readout) @ np.asarray(left * right, np.float64)
        terms += gross * horizon**2 * 2.3e-16 * (reading.hidden + reading.pre_readout)
    return terms, _fading(reading, structure, ideals, reach, horizon)


def _targets(attention: LinearAttention, decays: tuple[float, ...], kind: Any) -> list[Array]:
    """The recovered T of each decay, as coefficients of x_a x_b (of x̃) times x_c."""
    own = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    values = np.asarray(attention.w_value).astype(kind)
    keys, queries = (np.asarray(weight).astype(kind) for weight in (attention.w_key, attention.w_query))
    key_query = np.einsum("hka,hkb->hab", keys, queries)
    return [fold(np.einsum("hia,hbc->iabc", values[own == decay], key_query[own == decay])) for decay in decays]


def _block(readout: Array, left: Array, right: Array) -> Array:
    """K_k = Σ_j D_kj left_j right_jᵀ."""
    return np.stack([(left * row[:, None]).T @ right for row in readout])


def _block_bound(
    reading: Reading,
    block: Array,
    pair: tuple[int, int],
    targets: list[Array],
    ideals: Array,
    bound: float,
    horizon: int,
) -> Float[Array, " d_out"]:
    """The largest value in the box of one block of coefficients, less those of the attention."""
    g, other = pair
    last = len(ideals) - 1
    reach = bound ** reading.degree.astype(float)
    if g == other == last:  # query×query: one polynomial in x_t
        polynomial = quartic(reading.d, block.astype(np.float64))
        return np.abs(polynomial.coefficients) @ bound ** polynomial.exponents.sum(axis=1).astype(float)
    if other == last:  # memory×query holds the attention itself
        quadratic, linear = reading.degree == 2, reading.degree == 1
        block = block.copy()
        block[np.ix_(np.arange(len(block)), quadratic, linear)] -= targets[g]
    elif g == other:
        block = block + block.transpose(0, 2, 1)
        block = np.triu(block) - np.einsum("kpp,pq->kpq", block, np.eye(block.shape[1])) / 2
    sizes = decayed_length(ideals[[g, other]], horizon)
    weighted = np.abs(block).astype(np.float64) * reach[None, :, None] * reach[None, None, :]
    return weighted.sum(axis=(1, 2)) * sizes[0] * sizes[1]


def _fading(
    reading: Reading, structure: Structure, ideals: Array, reach: Array, horizon: int
) -> Float[Array, " d_out"]:
    """Σ over pairs of neurons of |λ_i^l λ_j^l' − ideal_i^l ideal_j^l'|, neurons of equal λ taken together."""
    ideal = np.zeros(reading.hidden)
    for group, value in zip(structure.memory, structure.decays, strict=True):
        ideal[group] = value
    lambda_ = reading.lambda_
    if np.array_equal(lambda_, ideal):
        return np.zeros(reading.d_out)
    pairs = np.stack([lambda_, ideal], axis=1)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    lags = np.arange(horizon)
    powers = unique[:, :1] ** lags[None], unique[:, 1:] ** lags[None]
    off = np.abs(powers[0] - powers[1]).sum(axis=1)
    here, there = powers[0].sum(axis=1), powers[1].sum(axis=1)
    sides = [
        np.stack([weights[:, index == u] @ reading.forms[index == u] for u in range(len(unique))])
        for weights in (reading.left, reading.right)
    ]  # u m p
    if len(unique) <= MOST_GROUPS:
        total = np.zeros(reading.d_out)
        for u in range(len(unique)):
            for v in range(len(unique)):
                weight = off[u] * here[v] + there[u] * off[v]
                if weight == 0:
                    continue
                block = np.abs(_block(reading.readout, sides[0][u], sides[1][v]))
                total += weight * np.einsum("kpq,p,q->k", block, reach, reach)
        return total
    left, right = (np.abs(side) @ reach for side in sides)  # u m
    rows = (off @ left) * (here @ right) + (there @ left) * (off @ right)
    return np.abs(reading.readout) @ rows


def _gamma(count: Any, unit: float) -> Any:
    return count * unit / (1 - count * unit)


def _magnitude(matrix: Any) -> tuple[Array, Array]:
    """|W|, and the number of products that each row adds up: zeros round nothing."""
    array = np.abs(np.asarray(dense(matrix), np.float64))
    return array, np.count_nonzero(array, axis=1)


def _network_rounding(model: GatedRNN, reading: Reading, bound: float, horizon: int) -> Float[Array, " d_out"]:
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
    error, state = drive_error.copy(), drive.copy()  # the first step adds to zero, exactly
    for _ in range(1, horizon):
        state = lambda_ * state + drive
        error = lambda_ * error + drive_error + per_step * state
    return error, state


def _attention_rounding(attention: LinearAttention, bound: float, horizon: int) -> Float[Array, " d_out"]:
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
