"""The same function in as few neurons as can be found: exact reduction instead of refitting.

The output gating reads linear functionals of the memory neurons, that is, a subspace of quadratic forms in x.
As many products (a·x)(b·x) as that subspace has dimensions hold it, where it has a basis of products. The
queries are a subspace of linear forms, and the pre-readout neurons a sum of terms (merge.py). For one head
with r = rank W_V, s = rank M and o = dim(row space of W_V ∩ column space of M) this meets r·s − o(o−1)/2
memory neurons and as many pre-readout neurons, and s queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.cells.gated_rnn import GatedRNN, Gating
from underhood.identify.forms import Array, Reading, pair_indices, product_forms
from underhood.identify.merge import (
    MergedKernel,
    Terms,
    concatenate,
    merge_rows,
    merge_terms,
    refit_readout,
    slice_terms,
)
from underhood.identify.recover import Heads
from underhood.identify.temporal import Structure

ROUNDING = 1e-9  # relative size below which a direction is rounding, in weights of float64


@dataclass(frozen=True)
class _Basis:
    """A common basis of the row space of W_V and the column space of M: first what they share."""

    values: Float[Array, "r d"]
    keys: Float[Array, "s d"]
    shared: int


def reduce_attention(
    reading: Reading,
    structure: Structure,
    heads: list[Heads],
    products: tuple[Array, Array] | None,
) -> GatedRNN:
    """The smallest gated RNN found for the attention in `heads`, one entry for each decay.

    `products` are the two branches of the input gating, whose neurons are candidates as they stand.
    """
    # The heads are exact products, whatever noise they were found in.
    tolerance = ROUNDING
    folded = [_folded(one.tensor) for one in heads]
    target = np.concatenate(folded, axis=1)
    scale = float(np.linalg.norm(target)) or 1.0
    queries = _query_basis(target, tolerance * scale)
    memories = [
        _memory_products(part, one, group, products, tolerance)
        for part, one, group in zip(folded, heads, structure.memory, strict=True)
    ]
    spaces = [_row_space(_as_forms(part), tolerance) for part in folded]
    terms = _fewest_terms(reading, structure, heads, target, spaces, tolerance * scale)
    return _network(terms, memories, queries, structure.decays, reading.d)


def _folded(tensor: Float[Array, "d_out d d d"]) -> Float[Array, "d_out p d"]:
    """T_i[a,b,c] as coefficients of x_a x_b, a ≤ b."""
    rows, columns = pair_indices(tensor.shape[1])
    return tensor[:, rows, columns, :] * np.where(rows == columns, 1.0, 2.0)[None, :, None]


def _as_forms(folded: Float[Array, "d_out p d"]) -> Float[Array, "k p"]:
    """Every quadratic form that some output multiplies with some query."""
    return folded.transpose(0, 2, 1).reshape(-1, folded.shape[1])


def _row_space(matrix: Float[Array, "k p"], tolerance: float) -> Float[Array, "r p"]:
    _, singular, vectors = np.linalg.svd(matrix, full_matrices=False)
    largest = singular.max(initial=0.0)
    return vectors[singular > tolerance * largest] if largest > 0 else vectors[:0]


def _query_basis(target: Float[Array, "d_out p d"], tolerance: float) -> Float[Array, "s d"]:
    """Queries as they are where all are needed, else an orthonormal basis of those that are."""
    d = target.shape[2]
    _, singular, vectors = np.linalg.svd(target.reshape(-1, d), full_matrices=False)
    needed = int((singular > tolerance).sum())
    return np.eye(d) if needed == d else vectors[:needed]


def independent_rows(matrix: Float[Array, "k p"], tolerance: float) -> Array:
    """Indices of linearly independent rows, the most independent first (Gram–Schmidt with pivots)."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    rest = matrix / np.where(norms > 0, norms, 1.0)
    chosen: list[int] = []
    for _ in range(min(matrix.shape)):
        sizes = np.linalg.norm(rest, axis=1)
        best = int(np.argmax(sizes))
        if sizes[best] <= tolerance:
            break
        chosen.append(best)
        direction = rest[best] / sizes[best]
        for _ in range(2):  # twice is enough (Kahan): once leaves rounding behind
            rest = rest - np.outer(rest @ direction, direction)
    return np.array(chosen, int)


def _memory_products(
    folded: Array, heads: Heads, group: Array, products: tuple[Array, Array] | None, tolerance: float
) -> tuple[Array, Array]:
    """Products that span the forms the output needs: of the heads, of the network, or of the inputs."""
    d = heads.values.shape[2]
    space = _row_space(_as_forms(folded), tolerance)
    if not len(space):
        return np.zeros((0, d)), np.zeros((0, d))
    candidates = [_head_products(heads, tolerance)]
    if products is not None:
        first, second = (branch[group] for branch in products)
        pure = (np.abs(first[:, -1]) + np.abs(second[:, -1])) <= tolerance * np.abs(first).max(initial=1.0)
        candidates.append((first[pure, :-1], second[pure, :-1]))
    rows, columns = pair_indices(d)
    candidates.append((np.eye(d)[rows], np.eye(d)[columns]))
    found = [_spanning(*pair, space, tolerance) for pair in candidates]
    return min((pair for pair in found if pair is not None), key=lambda pair: len(pair[0]))


def _spanning(first: Array, second: Array, space: Array, tolerance: float) -> tuple[Array, Array] | None:
    """As few of these products as span the space; None where they do not."""
    forms = product_forms(first, second)
    norms = np.linalg.norm(forms, axis=1)
    inside = np.linalg.norm(forms - forms @ space.T @ space, axis=1) <= 1e3 * tolerance * norms
    inside &= norms > 0
    chosen = np.flatnonzero(inside)[independent_rows(forms[inside], 10 * tolerance)]
    if len(chosen) < len(space):
        chosen = independent_rows(forms, 10 * tolerance)
        if not len(chosen):
            return None
        scaled = forms[chosen] / norms[chosen, None]
        weights, *_ = np.linalg.lstsq(scaled.T, space.T, rcond=None)
        if np.linalg.norm(scaled.T @ weights - space.T) > 1e3 * tolerance:
            return None
        chosen = chosen[np.linalg.norm(weights, axis=1) > 1e2 * tolerance]
    return first[chosen], second[chosen]


def _head_basis(values: Array, key_query: Array, tolerance: float) -> _Basis:
    rows = _row_space(values, tolerance)
    keys = _row_space(key_query.T, tolerance)
    # Cosines of the principal angles: 1 for the directions that the two spaces share.
    left, cosines, right = np.linalg.svd(rows @ keys.T)
    shared = int((cosines > 1 - max(tolerance, 1e-12)).sum())
    values_basis, keys_basis = left.T @ rows, right @ keys
    keys_basis[:shared] = values_basis[:shared]
    return _Basis(values_basis, keys_basis, shared)


def _head_products(heads: Heads, tolerance: float) -> tuple[Array, Array]:
    first: list[Array] = []
    second: list[Array] = []
    for values, key_query in zip(heads.values, heads.key_query, strict=True):
        basis = _head_basis(values, key_query, tolerance)
        for i, row in enumerate(basis.values):
            for j, key in enumerate(basis.keys):
                if not (j < i < basis.shared):  # e_i e_j = e_j e_i
                    first.append(row)
                    second.append(key)
    return np.array(first), np.array(second)


def _head_terms(values: Array, key_query: Array, offset: int, width: int, tolerance: float) -> Terms:
    """y = Σ_ij U_i (u_i·x)(w_j·x) q_j; where u and w are shared, a symmetric matrix times a vector:

    S_ij (q_i + q_j) serves the outputs i and j, and (S_ii − Σ_{j≠i} S_ij) q_i is left: o(o+1)/2 products for
    o².
    """
    d = values.shape[1]
    basis = _head_basis(values, key_query, tolerance)
    outputs = np.linalg.lstsq(basis.values.T, values.T, rcond=None)[0]  # row i: what u_i writes
    queries = np.linalg.lstsq(basis.keys.T, key_query, rcond=None)[0]  # row j: the query that w_j meets
    forms = np.zeros((len(basis.values), len(basis.keys), width))
    pairs = d * (d + 1) // 2
    for i, row in enumerate(basis.values):
        forms[i, :, offset : offset + pairs] = product_forms(np.repeat(row[None], len(basis.keys), 0), basis.keys)
    terms: list[tuple[Array, Array, Array]] = []
    o = basis.shared
    for i in range(len(basis.values)):
        for j in range(len(basis.keys)):
            if i >= o or j >= o:
                terms.append((outputs[i], forms[i, j], queries[j]))
            elif i < j:
                terms.append((outputs[i] + outputs[j], forms[i, j], queries[i] + queries[j]))
            elif i == j:
                others = forms[i, :o].sum(axis=0) - forms[i, i]
                terms.append((outputs[i], forms[i, i] - others, queries[i]))
    if not terms:
        return Terms(np.zeros((0, len(values))), np.zeros((0, width)), np.zeros((0, d)))
    return Terms(*(np.array(part) for part in zip(*terms, strict=True)))


def _own_terms(reading: Reading, structure: Structure, spaces: list[Array]) -> Terms:
    """The network's own pre-readout neurons, of which only memory times query counts."""
    quadratic, linear = reading.degree == 2, reading.degree == 1
    sides = []
    for weights in (reading.left, reading.right):
        memory = [
            (np.real(weights[:, group] @ reading.forms[group][:, quadratic]) @ space.T) @ space
            for group, space in zip(structure.memory, spaces, strict=True)
        ]
        query = np.real(weights[:, structure.forget] @ reading.forms[structure.forget][:, linear])
        sides.append((np.concatenate(memory, axis=1), query))
    (left_memory, left_query), (right_memory, right_query) = sides
    columns = reading.readout.T
    return concatenate([Terms(columns, left_memory, right_query), Terms(columns, right_memory, left_query)])


def _fewest_terms(
    reading: Reading,
    structure: Structure,
    heads: list[Heads],
    target: Array,
    spaces: list[Array],
    tolerance: float,
) -> Terms:
    width, pairs = target.shape[1], target.shape[1] // len(heads)
    relative = tolerance / (float(np.linalg.norm(target)) or 1.0)
    by_head = [
        _head_terms(values, key_query, index * pairs, width, relative)
        for index, one in enumerate(heads)
        for values, key_query in zip(one.values, one.key_query, strict=True)
    ]
    candidates = [
        merge_terms(concatenate(by_head), tolerance),
        merge_terms(_own_terms(reading, structure, spaces), tolerance),
        slice_terms(target, tolerance),
    ]
    fitted = [refit_readout(terms, target) for terms in candidates]
    good = [terms for terms, residual in fitted if residual <= 1e2 * relative]
    return min(good or [fitted[2][0]], key=len)


def _network(
    terms: Terms,
    memories: list[tuple[Array, Array]],
    queries: Array,
    decays: tuple[float, ...],
    d: int,
) -> GatedRNN:
    """Memory neurons first, then queries: the blocks of Figure 2.A."""
    pairs = d * (d + 1) // 2
    reads = []
    for index, (first, second) in enumerate(memories):
        forms = product_forms(first, second)
        part = terms.memory[:, index * pairs : (index + 1) * pairs]
        reads.append(np.linalg.lstsq(forms.T, part.T, rcond=None)[0].T if len(forms) else part[:, :0])
    memory = np.concatenate(reads, axis=1)
    query = np.linalg.lstsq(queries.T, terms.query.T, rcond=None)[0].T
    left = np.concatenate([memory, np.zeros_like(query)], axis=1)
    right = np.concatenate([np.zeros_like(memory), query], axis=1)
    first = np.concatenate([*(pair[0] for pair in memories), queries])
    second = np.concatenate([*(pair[1] for pair in memories), np.zeros_like(queries)])
    constant = np.zeros((len(first), 2))
    constant[memory.shape[1] :, 1] = 1.0
    lambda_ = np.concatenate(
        [
            *(np.full(len(pair[0]), decay) for pair, decay in zip(memories, decays, strict=True)),
            np.zeros(len(queries)),
        ]
    )
    return GatedRNN.from_lambda(
        Gating(np.concatenate([first, constant[:, :1]], axis=1), np.concatenate([second, constant[:, 1:]], axis=1)),
        lambda_,
        Gating(left, right),
        terms.readout.T,
    )


def reduce_general(reading: Reading, products: tuple[Array, Array]) -> tuple[GatedRNN, list[MergedKernel]]:
    """Any gated RNN: neurons of equal λ that depend on others are expressed through them, unread ones go,
    and rows that share a readout column merge."""
    left, right, keep = reading.left.copy(), reading.right.copy(), []
    for value in np.unique(reading.lambda_):
        group = np.flatnonzero(reading.lambda_ == value)
        forms = reading.forms[group]
        chosen = independent_rows(forms, 10 * ROUNDING)
        if not len(chosen):
            continue
        others = np.setdiff1d(np.arange(len(group)), chosen)
        weights = np.linalg.lstsq(forms[chosen].T, forms[others].T, rcond=None)[0]  # chosen × others
        for reads in (left, right):
            reads[:, group[chosen]] += reads[:, group[others]] @ weights.T
        keep.extend(group[chosen])
    kept = np.sort(np.array(keep, int))
    left, right, readout, kernels = merge_rows(left[:, kept], right[:, kept], reading.readout, 1e-12)
    reads = np.abs(left).max(axis=0, initial=0.0) + np.abs(right).max(axis=0, initial=0.0)
    read = np.flatnonzero(reads > 1e-14 * max(reads.max(initial=0.0), 1e-300))
    if not len(read):
        return _silent(reading), kernels
    kept = kept[read]
    first, second = (branch[kept] for branch in products)
    lambda_ = np.real(reading.lambda_[kept])
    gating = Gating(left[:, read], right[:, read])
    return GatedRNN.from_lambda(Gating(first, second), lambda_, gating, readout), kernels


def _silent(reading: Reading) -> GatedRNN:
    """Zero for every input takes no neuron at all."""
    nothing = np.zeros((0, reading.d + 1))
    silence = Gating(np.zeros((0, 0)), np.zeros((0, 0)))
    return GatedRNN.from_lambda(Gating(nothing, nothing), np.zeros(0), silence, np.zeros((reading.d_out, 0)))
