"""y_i = Σ_{|α|≤4} c_{i,α} x^α: the instantaneous function as a polynomial, exactly from the weights.

Section 3.1: on a sequence of length one, linear attention is a polynomial of degree 3 and a gated RNN one of
degree 4. The forms of the hidden neurons contract through two matrix products; no monomial is ever expanded by
hand. In x̃ = [x, 1] every term has degree four, so one index map serves all degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from jaxtyping import Float, Int

from underhood.algebra.heads import head_tensor
from underhood.algebra.quadratic import Array, fold, pair_indices
from underhood.attention.linear import LinearAttention
from underhood.core.errors import UnderhoodError
from underhood.decompiler.from_weights.merge import merge_rows
from underhood.decompiler.from_weights.reading import Reading
from underhood.training.tasks.linear_regression import LinearRegression


@dataclass(frozen=True)
class Polynomial:
    """Coefficients of every monomial of degree ≤ 4 in d variables, one row for each output."""

    exponents: Int[Array, "k d"]
    coefficients: Float[Array, "d_out k"]

    def __call__(self, xs: Float[Array, "... d"]) -> Float[Array, "... d_out"]:
        monomials = np.prod(xs[..., None, :] ** self.exponents, axis=-1)
        return monomials @ self.coefficients.T

    def coefficient(self, output: int, exponents: Sequence[int]) -> float:
        """The coefficient of x^exponents in one output."""
        (where,) = np.nonzero((self.exponents == np.asarray(exponents)).all(axis=1))
        return float(self.coefficients[output, where[0]]) if len(where) else 0.0


@lru_cache(maxsize=32)
def _quartics(d: int) -> tuple[Array, Array]:
    """Exponents of all monomials of degree ≤ 4, and the monomial of each product of two pairs of x̃."""
    quadruples = np.array(list(combinations_with_replacement(range(d + 1), 4)))
    index = {tuple(quadruple): k for k, quadruple in enumerate(quadruples.tolist())}
    exponents = np.stack([(quadruples == a).sum(axis=1) for a in range(d)], axis=1)
    rows, columns = pair_indices(d + 1)
    pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    where = [[index[tuple(sorted((*p, *q)))] for q in pairs] for p in pairs]
    return exponents, np.array(where)


def quartic(d: int, blocks: Float[Array, "d_out p p"]) -> Polynomial:
    """Σ_pq blocks[i,p,q] (x̃x̃)_p (x̃x̃)_q with equal monomials collected."""
    exponents, where = _quartics(d)
    flat = where.ravel()
    collected = [np.bincount(flat, weights=block.ravel(), minlength=len(exponents)) for block in blocks]
    return Polynomial(exponents, np.stack(collected))


def instantaneous(reading: Reading) -> Polynomial:
    """g_out(g_in(x)) of a gated RNN: its output on a sequence of length one."""
    left, right = reading.left @ reading.forms, reading.right @ reading.forms
    blocks = np.real(np.stack([(left * row[:, None]).T @ right for row in reading.readout]))
    return quartic(reading.d, blocks)


def of_attention(tensor: Float[Array, "d_out d d d"]) -> Polynomial:
    """Σ T_i[a,b,c] x_a x_b x_c, the instantaneous function of attention, on the same monomials."""
    d = tensor.shape[1]
    rows, columns = pair_indices(d + 1)
    place = np.zeros((d + 1, d + 1), int)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    blocks = np.zeros((len(tensor), len(rows), len(rows)))
    a, b, c = np.indices((d, d, d)).reshape(3, -1)
    for block, entries in zip(blocks, tensor.reshape(len(tensor), -1), strict=True):
        np.add.at(block, (place[a, b], place[c, d]), entries)
    return quartic(d, blocks)


def distance(network: Polynomial, attention: Polynomial) -> float:
    """Section 3.1: ‖c_network − c_attention‖ / ‖c_attention‖ for each output, averaged over outputs.

    An output that attention leaves at zero has no norm of its own; it is measured by the norm of the others.
    """
    gaps = np.linalg.norm(network.coefficients - attention.coefficients, axis=1)
    return _relative(gaps, np.linalg.norm(attention.coefficients, axis=1))


def _relative(gaps: Float[Array, " d_out"], norms: Float[Array, " d_out"]) -> float:
    overall = float(np.sqrt(np.mean(norms**2)))
    if overall == 0.0:
        return float(gaps.mean())
    return float(np.mean(gaps / np.where(norms > 1e-12 * overall, norms, overall)))


def polynomial_distance(reading: Reading, attention: LinearAttention, network: Polynomial | None) -> float:
    """`distance` of a network from an attention; without its polynomial, from what its rows read."""
    values, key_query = np.asarray(attention.w_value, np.float64), attention.key_query
    if network is not None:
        return distance(network, of_attention(head_tensor(values, key_query)))
    gaps, norms = _norms_by_degree(_merged(reading), values, key_query)
    return _relative(np.sqrt(gaps), np.sqrt(norms))


def _merged(reading: Reading) -> Reading:
    """The same function in fewer rows, so that squares which cancel are no longer there to be multiplied."""
    if np.iscomplexobj(reading.left):
        return reading
    reading = reading.without_silent_neurons()
    left, right, readout, _ = merge_rows(reading.left, reading.right, reading.readout, 1e-14)
    return replace(reading, left=left, right=right, readout=readout)


def _norms_by_degree(reading: Reading, values: Array, key_query: Array) -> tuple[Array, Array]:
    """‖c_network − c_attention‖² and ‖c_attention‖² of each output, one output and one degree at a time."""
    sides = [weights @ reading.forms for weights in (reading.left, reading.right)]
    (l0, l1, l2), (r0, r1, r2) = ([side[:, reading.degree == degree] for degree in range(3)] for side in sides)
    sizes = np.linalg.norm(reading.readout, axis=0) * np.linalg.norm(l2, axis=1) * np.linalg.norm(r2, axis=1)
    whole = np.linalg.norm(reading.readout, axis=0) * np.prod([np.linalg.norm(side, axis=1) for side in sides], axis=0)
    mixed = sizes > 1e-15 * whole.max(initial=0.0)  # rows with a part of degree 4 above rounding
    pairs = np.stack(pair_indices(reading.d), axis=1)
    cubic = _monomials(pairs, np.arange(reading.d)[:, None])
    quartic_ = _monomials(pairs, pairs) if mixed.any() else None
    gaps, norms = np.zeros((2, reading.d_out))
    for k, row in enumerate(reading.readout):
        wanted = fold(np.einsum("ha,hbc->abc", values[:, k], key_query)[None])[0]
        here = np.real(l2.T @ (r1 * row[:, None]) + r2.T @ (l1 * row[:, None]))
        squares = np.real(l1.T @ (r1 * row[:, None]))[None, :, :, None]
        lower = [
            np.real(l2.T @ (r0 * row[:, None]) + r2.T @ (l0 * row[:, None]))[:, 0] + fold(squares)[0, :, 0],
            np.real(l1.T @ (r0 * row[:, None]) + r1.T @ (l0 * row[:, None])),
            np.real(l0.T @ (r0 * row[:, None])),
        ]
        norms[k] = np.sum(np.bincount(cubic, wanted.ravel()) ** 2)
        gaps[k] = np.sum(np.bincount(cubic, (here - wanted).ravel()) ** 2) + sum(np.sum(one**2) for one in lower)
        if quartic_ is not None:
            block = np.real((l2[mixed].T * row[mixed]) @ r2[mixed])
            gaps[k] += np.sum(np.bincount(quartic_, block.ravel()) ** 2)
    return gaps, norms


def _monomials(first: Int[Array, "n k"], second: Int[Array, "m l"]) -> Int[Array, " nm"]:
    """Which monomial each product of two monomials is, by the sorted indices of its variables."""
    both = np.concatenate(
        [np.repeat(first, len(second), axis=0), np.tile(second, (len(first), 1))], axis=1, dtype=np.int64
    )
    both.sort(axis=1)
    codes = both @ (int(both.max()) + 1) ** np.arange(both.shape[1])
    return np.unique(codes, return_inverse=True)[1]


@dataclass(frozen=True)
class GradientTerms:
    """Table 2: coefficients of x_i² y_1 in the first prediction; one optimal step has them all at `optimum`."""

    terms: tuple[float, ...]
    residual_norm: float
    optimum: float

    @property
    def learning_rate(self) -> float:
        return float(np.mean(self.terms))


def gradient_terms(polynomial: Polynomial, d_x: int, d_y: int, observations: int) -> GradientTerms:
    """Table 2 from the instantaneous polynomial; elements are (x, y), predictions the last d_y outputs."""
    d, d_out = polynomial.exponents.shape[1], len(polynomial.coefficients)
    if d != d_x + d_y or d_out not in (d_y, d_x + d_y):
        raise UnderhoodError(
            "expected an in-context network, which reads (x, y) and predicts y",
            f"{d} inputs and {d_out} outputs for d_x={d_x}, d_y={d_y}",
        )
    row = d_out - d_y
    terms, rest = [], polynomial.coefficients[row].copy()
    for i in range(d_x):
        exponents = np.zeros(d, int)
        exponents[i], exponents[d_x] = 2, 1
        (where,) = np.flatnonzero((polynomial.exponents == exponents).all(axis=1))
        terms.append(float(rest[where]))
        rest[where] = 0.0
    optimum = LinearRegression(observations, d_x, d_y).optimal_eta
    return GradientTerms(tuple(terms), float(np.linalg.norm(rest)), optimum)
