"""y_i = Σ_{|α|≤4} c_{i,α} x^α: the instantaneous function as a polynomial, exactly from the weights.

Section 3.1: on a sequence of length one, linear attention is a polynomial of degree 3 and a gated RNN one of
degree 4. The forms of the hidden neurons contract through two matrix products; no monomial is ever expanded by
hand. In x̃ = [x, 1] every term has degree four, so one index map serves all degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from jaxtyping import Float, Int

from underhood.algebra.quadratic import Array, pair_indices
from underhood.identify.forms import Reading


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
    norms = np.linalg.norm(attention.coefficients, axis=1)
    overall = float(np.sqrt(np.mean(norms**2)))
    if overall == 0.0:
        return float(gaps.mean())
    return float(np.mean(gaps / np.where(norms > 1e-12 * overall, norms, overall)))
