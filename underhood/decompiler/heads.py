"""Σ_j D_j (A_j·xx) B_jᵀ = Θ(x) = V(x) M(x): the fewest heads for what the rows of a network read of its memories.

The rank of Θ at a generic x is the least number of heads there can be. Up to d = 16 the tensor T is written out and
searched; beyond, heads come from Θ and its differences at one point (algebra/theta.py), and alternating least squares
on further points takes away what rounding, or noise, has grown on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import Heads, balanced, fewest_heads
from underhood.algebra.quadratic import Array, pair_products, unfold
from underhood.algebra.theta import Theta, compress, split_at
from underhood.decompiler.from_weights.merge import Terms
from underhood.decompiler.from_weights.reading import MOST_DENSE

FEW_INPUTS = 8  # up to which searching T itself costs milliseconds
POINTS_PER_INPUT = 3
MOST_ROUNDS = 30  # of alternating least squares; exact weights take one


def recover(terms: Terms, d: int, tolerance: float, *, seed: int = 0) -> Heads:
    """The fewest heads whose T is that of the terms within `tolerance` (relative)."""
    terms = Terms(terms.readout, np.real(terms.memory), np.real(terms.query))
    d_out = terms.readout.shape[1]
    if not terms.sizes.any():
        return Heads(np.zeros((1, d_out, d)), np.zeros((1, d, d)), 0.0)
    theta = _Theta(terms, d, np.random.default_rng(seed))
    heads = _split(theta, tolerance) if d > FEW_INPUTS else None
    if heads is None and d <= MOST_DENSE:
        heads = fewest_heads(unfold(terms.tensor, d), tolerance, seed=seed)
    if heads is None:
        compressed = compress(theta, (1.0,), tolerance / 10)
        is_small = compressed and max(compressed[0].core.shape) <= MOST_DENSE
        heads = compressed[0].heads(tolerance, seed=seed) if is_small else _head_per_entry(terms, d)
    return Heads(*balanced(heads.values, heads.key_query), heads.residual)


@dataclass
class _Theta(Theta):
    """Θ(x) from the terms, in the coordinates of the inputs."""

    terms: Terms
    d: int
    random: np.random.Generator
    input_bound: float = 1.0

    def __post_init__(self) -> None:
        self.queries = np.eye(self.d)

    def normal(self, count: int, share: float = 1.0) -> Float[Array, "n d"]:
        """Directions at random."""
        xs = self.random.standard_normal((count, self.d))
        return share * xs / np.linalg.norm(xs, axis=1, keepdims=True)

    def orthogonal(self, share: float = 1.0) -> Float[Array, "d d"]:
        return share * np.eye(self.d)

    def responses(self, inputs: Float[Array, "n d"], decays: tuple[float, ...] = (1.0,)) -> Array:
        return self(inputs)[None]

    def __call__(self, xs: Float[Array, "n d"]) -> Float[Array, "n d_out q"]:
        weights = pair_products(xs) @ self.terms.memory.T
        return np.stack([(self.terms.readout * weight[:, None]).T @ self.terms.query for weight in weights])


def _split(theta: _Theta, tolerance: float) -> Heads | None:
    """As many heads as the rank of Θ; None where these do not do."""
    fresh = theta.normal(POINTS_PER_INPUT * theta.d)
    at_fresh = theta(fresh)
    singular = np.linalg.svd(at_fresh[:8], compute_uv=False)
    count = int((singular > 10 * tolerance * singular.max()).sum(axis=1).max())
    if count >= max(at_fresh.shape[1:]):
        return None
    start = split_at(theta, fresh[[int(np.argmax(singular[:, count - 1]))]], count)
    refined = _alternated(start, fresh, at_fresh)
    other = theta.normal(2 * theta.d)
    residual = _distance(refined, other, theta(other))
    return Heads(refined.values, refined.key_query, residual) if residual <= tolerance else None


def _alternated(start: Heads, xs: Float[Array, "n d"], theta: Float[Array, "n d_out q"]) -> Heads:
    """Least squares for M given V, then for V given M, until neither gains."""
    best, residual, values = start, _distance(start, xs, theta), start.values
    heads, d_out, d = values.shape
    for _ in range(MOST_ROUNDS):
        at = np.einsum("hia,na->nih", values, xs)
        design = np.einsum("nih,na->niha", at, xs).reshape(-1, heads * d)
        solved = np.linalg.lstsq(design, theta.reshape(-1, theta.shape[2]), rcond=None)[0]
        key_query = solved.reshape(heads, d, -1)
        at = np.einsum("hac,na->nch", key_query, xs)
        design = np.einsum("nch,na->ncha", at, xs).reshape(-1, heads * d)
        solved = np.linalg.lstsq(design, theta.transpose(0, 2, 1).reshape(-1, d_out), rcond=None)[0]
        values = solved.T.reshape(d_out, heads, d).transpose(1, 0, 2)
        moved = Heads(values, key_query, 0.0)
        distance = _distance(moved, xs, theta)
        has_gained = distance < 0.9 * residual
        best, residual = (moved, distance) if distance < residual else (best, residual)
        if not has_gained or residual <= 1e-14:
            break
    return best


def _distance(heads: Heads, xs: Array, theta: Array) -> float:
    here = np.einsum("hia,na->nih", heads.values, xs) @ np.einsum("hac,na->nhc", heads.key_query, xs)
    return float(np.linalg.norm(here - theta) / np.linalg.norm(theta))


def _head_per_entry(terms: Terms, d: int) -> Heads:
    """T_i[a,b,c] = Σ_{i'a'} (e_i' e_a'ᵀ)[i,a] T_i'[a',b,c]: a head for each output and input."""
    d_out = terms.readout.shape[1]
    values = np.eye(d_out * d).reshape(d_out * d, d_out, d)
    key_query = np.concatenate(
        [unfold(((terms.readout[:, i : i + 1] * terms.memory).T @ terms.query)[None], d)[0] for i in range(d_out)]
    )
    return Heads(values, key_query, 0.0)
