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
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.decompiler.from_weights.polynomial import quartic
from underhood.decompiler.from_weights.reading import MOST_DENSE, Reading
from underhood.decompiler.from_weights.rounding import attention_rounding, network_rounding
from underhood.decompiler.from_weights.row_gap import row_gap
from underhood.decompiler.from_weights.structure import Structure

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
    terms = _function_gap(reading, structure, attention, input_bound, horizon)
    fading = _fading(reading, structure, input_bound, horizon)
    rounding = network_rounding(model, reading, input_bound, horizon)
    rounding = rounding + attention_rounding(attention, input_bound, horizon)
    worst = int(np.argmax(terms + fading + rounding))
    # The bound itself is computed in floating point: a part in a million covers that many times over.
    total = float((terms + fading + rounding)[worst]) * (1 + 1e-6)
    return Certificate(input_bound, horizon, total, float(terms[worst]), float(fading[worst]), float(rounding[worst]))


def _function_gap(
    reading: Reading, structure: Structure, attention: LinearAttention, bound: float, horizon: int
) -> Float[Array, " d_out"]:
    """The largest difference of each output within the box, with each λ at its ideal value."""
    if reading.d > MOST_DENSE:
        return row_gap(reading, structure, attention, bound, horizon)
    groups = [*structure.memory, structure.forget]
    ideals = np.append(np.asarray(structure.decays), 0.0)
    work = sum(len(group) for group in groups) * reading.pre_readout * reading.forms.shape[1]
    dtype = np.longdouble if work * (1 + reading.d_out / 4) < LONG_DOUBLE_WORK else np.float64
    sides = [
        [weights[:, group].astype(dtype) @ reading.forms[group].astype(dtype) for group in groups]
        for weights in (reading.left, reading.right)
    ]
    readout = reading.readout.astype(dtype)
    reach = bound ** reading.degree.astype(float)
    targets = _targets(attention, structure.decays, dtype)
    terms = np.zeros(reading.d_out)
    for g in range(len(groups)):
        for other in range(g, len(groups)):
            block = _block(readout, sides[0][g], sides[1][other])
            if g != other:
                block = block + _block(readout, sides[0][other], sides[1][g]).transpose(0, 2, 1)
            terms += _block_bound(reading, block, (g, other), targets, ideals, bound, horizon)
    if dtype is np.float64:
        # The analysis rounds too: γ_n of the sums above, on everything before it cancels.
        left, right = (sum(np.abs(part) @ reach for part in side) for side in sides)
        gross = np.abs(reading.readout) @ np.asarray(left * right, np.float64)
        terms += gross * horizon**2 * 2.3e-16 * (reading.hidden + reading.pre_readout)
    return terms


def _targets(attention: LinearAttention, decays: tuple[float, ...], dtype: Any) -> list[Array]:
    """The recovered T of each decay, as coefficients of x_a x_b (of x̃) times x_c."""
    own = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    values = np.asarray(attention.w_value).astype(dtype)
    keys, queries = (np.asarray(weight).astype(dtype) for weight in (attention.w_key, attention.w_query))
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


def _fading(reading: Reading, structure: Structure, bound: float, horizon: int) -> Float[Array, " d_out"]:
    """Σ over pairs of neurons of |λ_i^l λ_j^l' − ideal_i^l ideal_j^l'|, neurons of equal λ taken together."""
    ideal, lambda_ = np.zeros(reading.hidden), reading.lambda_
    for group, value in zip(structure.memory, structure.decays, strict=True):
        ideal[group] = value
    read = reading.forms.any(axis=1) & (reading.left.any(axis=0) | reading.right.any(axis=0))
    if np.array_equal(lambda_[read], ideal[read]):
        return np.zeros(reading.d_out)
    unique, index = np.unique(np.stack([lambda_, ideal], axis=1), axis=0, return_inverse=True)
    here, there = (decayed_length(one, horizon) for one in unique.T)
    # λ^l − ideal^l has one sign for all l; the difference of the sums rounds.
    off = np.where(unique[:, 0] == unique[:, 1], 0.0, np.abs(here - there) + 1e-15 * (here + there))
    reach = bound ** reading.degree.astype(float)
    if len(unique) > MOST_GROUPS:
        sizes = np.abs(reading.forms) @ reach
        left, right = (np.abs(weights) * sizes for weights in (reading.left, reading.right))
        off, here, there = off[index], here[index], there[index]
        return np.abs(reading.readout) @ ((left @ off) * (right @ here) + (left @ there) * (right @ off))
    sides = [
        [weights[:, index == u] @ reading.forms[index == u] for u in range(len(unique))]
        for weights in (reading.left, reading.right)
    ]
    if reading.d > MOST_DENSE:
        left, right = (np.stack([np.abs(part) @ reach for part in side]) for side in sides)  # u m
        return np.abs(reading.readout) @ ((off @ left) * (here @ right) + (there @ left) * (off @ right))
    total = np.zeros(reading.d_out)
    for u in range(len(unique)):
        for v in range(len(unique)):
            weight = off[u] * here[v] + there[u] * off[v]
            if weight > 0:
                block = np.abs(_block(reading.readout, sides[0][u], sides[1][v]))
                total += weight * np.einsum("kpq,p,q->k", block, reach, reach)
    return total
