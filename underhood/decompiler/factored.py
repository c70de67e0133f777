"""Θ(x) = Σ_j D_j (A_j·xx) B_jᵀ = V(x) M(x), with T never written out: heads from its factors, for any d.

Θ at one point, and its derivative there, give V and M (factors.py). Alternating least squares on further points then
take away what rounding, or noise, has grown on the way.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, pair_indices, pair_products, product_forms, unfold
from underhood.algebra.subspaces import numerical_rank
from underhood.decompiler.factors import Projected
from underhood.decompiler.from_weights.merge import Terms
from underhood.decompiler.from_weights.reading import MOST_DENSE
from underhood.decompiler.recover import Heads, balanced, recover_heads

FEW_INPUTS = 8  # up to which searching T itself costs milliseconds
POINTS_PER_INPUT = 3
MOST_ROUNDS = 30  # of alternating least squares; exact weights take one


def recover_from_terms(terms: Terms, d: int, tolerance: float, *, seed: int = 0) -> Heads:
    """The fewest heads whose T is that of the terms within `tolerance` (relative)."""
    random = np.random.default_rng(seed)
    terms = Terms(terms.readout, np.real(terms.memory), np.real(terms.query))
    d_out = terms.readout.shape[1]
    if not terms.sizes.any():
        return Heads(np.zeros((1, d_out, d)), np.zeros((1, d, d)), 0.0)
    found = _closed_form(terms, d, tolerance, random) if d > FEW_INPUTS else None
    if found is None:
        found = _compressed(terms, d, tolerance, random, seed)
    return Heads(*balanced(found.values, found.key_query), found.residual)


def _compressed(terms: Terms, d: int, tolerance: float, random: np.random.Generator, seed: int) -> Heads:
    """By search, where T is small enough in its own bases; else a head for each output and input."""
    if d <= MOST_DENSE:
        return recover_heads(unfold(terms.tensor, d), tolerance, seed=seed)
    outputs, inputs, queries = _bases(terms, d, tolerance / 10, random)
    if max(outputs.shape[1], inputs.shape[1], queries.shape[1]) > MOST_DENSE:
        return _one_each(terms, d)
    core = Terms(terms.readout @ outputs, terms.memory @ _pairs_of(inputs), terms.query @ queries)
    found = recover_heads(unfold(core.tensor, inputs.shape[1]), tolerance, seed=seed)
    values = np.einsum("hjk,ij,ak->hia", found.values, outputs, inputs, optimize=True)
    key_query = np.einsum("hkl,ak,cl->hac", found.key_query, inputs, queries, optimize=True)
    return Heads(values, key_query, found.residual)


def _theta(terms: Terms, xs: Float[Array, "n d"]) -> Float[Array, "n d_out q"]:
    """Θ(x) at each x."""
    weights = pair_products(xs) @ terms.memory.T
    return np.stack([(terms.readout * weight[:, None]).T @ terms.query for weight in weights])


def _points(random: np.random.Generator, count: int, d: int) -> Float[Array, "n d"]:
    xs = random.standard_normal((count, d))
    return xs / np.linalg.norm(xs, axis=1, keepdims=True)


def _bases(terms: Terms, d: int, tolerance: float, random: np.random.Generator) -> tuple[Array, Array, Array]:
    """Orthonormal columns that span what T does to outputs, inputs and queries: its ranks are often smaller."""
    count = max(d, terms.readout.shape[1]) + 8  # one head has one direction a point
    theta = _theta(terms, _points(random, count, d))
    # ∂/∂x of wᵀ Θ(x) z at random x, w and z spans the inputs.
    picks = (random.standard_normal((2 * d, terms.readout.shape[1])) @ terms.readout.T) * (
        random.standard_normal((2 * d, terms.query.shape[1])) @ terms.query.T
    )
    forms = unfold((picks @ terms.memory)[:, :, None], d)[..., 0]
    slopes = np.einsum("nab,nb->na", forms, _points(random, 2 * d, d))
    by_output = theta.transpose(0, 2, 1).reshape(-1, theta.shape[1])
    by_query = theta.reshape(-1, theta.shape[2])
    return _span(by_output, tolerance), _span(slopes, tolerance), _span(by_query, tolerance)


def _span(rows: Float[Array, "k d"], tolerance: float) -> Float[Array, "d r"]:
    _, sizes, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[: numerical_rank(sizes, rows.shape, tolerance)].T


def _pair_slopes(x: Float[Array, " d"]) -> Float[Array, "p d"]:
    """∂(x_i x_j)/∂x."""
    rows, columns = pair_indices(len(x))
    eye = np.eye(len(x))
    return x[columns, None] * eye[rows] + x[rows, None] * eye[columns]


def _pairs_of(basis: Float[Array, "d r"]) -> Float[Array, "p pr"]:
    """x_i x_j in the coordinates of x = basis z."""
    rows, columns = pair_indices(len(basis))
    return product_forms(basis[rows], basis[columns])


def _closed_form(terms: Terms, d: int, tolerance: float, random: np.random.Generator) -> Heads | None:
    """As many heads as the rank of Θ; None where these do not do."""
    fresh = _points(random, POINTS_PER_INPUT * d, d)
    theta = _theta(terms, fresh)
    singular = np.linalg.svd(theta[:8], compute_uv=False)
    heads = int((singular > 10 * tolerance * singular.max()).sum(axis=1).max())
    if heads >= max(theta.shape[1:]):
        return None
    point = fresh[int(np.argmax(singular[:, heads - 1]))]
    found = _alternated(*_start(terms, point, heads), fresh, theta)
    other = _points(random, 2 * d, d)
    residual = _distance(found, other, _theta(terms, other))
    return Heads(*found, residual) if residual <= tolerance else None


def _start(terms: Terms, point: Float[Array, " d"], heads: int) -> tuple[Array, Array]:
    """V and M from Θ and its slope at one point, and from Θ at each coordinate."""
    d, inputs = len(point), np.eye(len(point))
    left, sizes, right = np.linalg.svd(_theta(terms, point[None])[0], full_matrices=False)
    u, w = left[:, :heads], right[:heads].T
    slopes = terms.memory @ _pair_slopes(point)  # k d
    crossed = np.stack([(terms.readout * slope[:, None]).T @ terms.query for slope in slopes.T])
    alone = _theta(terms, inputs)
    seen = Projected(u, sizes[:heads], w, inputs, alone @ w, u.T @ alone, crossed @ w, u.T @ crossed)
    found = seen.heads(heads, np.eye(d))
    return found.values, found.key_query


def _alternated(
    values: Array, key_query: Array, xs: Float[Array, "n d"], theta: Float[Array, "n d_out q"]
) -> tuple[Array, Array]:
    """Least squares for M given V, then for V given M, until neither gains."""
    found, best = (values, key_query), _distance((values, key_query), xs, theta)
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
        here = _distance((values, key_query), xs, theta)
        gained, found, best = here < 0.9 * best, (values, key_query) if here < best else found, min(here, best)
        if not gained or best <= 1e-14:
            break
    return found


def _distance(found: tuple[Array, Array], xs: Array, theta: Array) -> float:
    values, key_query = found
    here = np.einsum("hia,na->nih", values, xs) @ np.einsum("hac,na->nhc", key_query, xs)
    return float(np.linalg.norm(here - theta) / np.linalg.norm(theta))


def _one_each(terms: Terms, d: int) -> Heads:
    """T_i[a,b,c] = Σ_{i'a'} (e_i' e_a'ᵀ)[i,a] T_i'[a',b,c]: a head for each output and input."""
    d_out = terms.readout.shape[1]
    values = np.eye(d_out * d).reshape(d_out * d, d_out, d)
    key_query = np.concatenate(
        [unfold(((terms.readout[:, i : i + 1] * terms.memory).T @ terms.query)[None], d)[0] for i in range(d_out)]
    )
    return Heads(values, key_query, 0.0)
