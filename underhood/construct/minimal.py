"""The smallest form of an attention: as few memories, queries and products as can be proven or found.

The function is y_i(t) = Σ_{s≤t} Σ T_i[a,b,c] x_s,a x_s,b x_t,c with T_i = Σ_heads sym_ab(W_V[i,a] M[b,c]) and
M = W_KᵀW_Q. A memory neuron holds a product of two linear forms, so one head needs a basis of products for the
symmetric part of (row space of W_V) ⊗ (column space of M): with r and s their dimensions and o that of their
intersection, r·s − o(o−1)/2 of them, because the antisymmetric part over the intersection vanishes. This is a
lower bound too: the products of the readout make every one of these forms show in some output.

Queries: the joint row space of all M. Products: S_ij (q_i + q_j) serves y_i and y_j where S is symmetric, so a
head takes r·s − o(o−1)/2 of them, and never needs more than (rank of outputs) × (queries) in all.
"""

from __future__ import annotations

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.construct.forms import (
    KeyValueForm,
    factor_key_query,
    heads_of,
    numerical_rank,
    plain,
    row_space,
    stack_forms,
)

# Directions closer than this count as one. Larger than what rounding does to an exact intersection, smaller
# than what would show in outputs that are verified to 1e-12.
SAME_DIRECTION = 1e-12


def minimal(attention: LinearAttention) -> KeyValueForm:
    """The smaller of: each head on its own, and all heads of one decay through shared memories."""
    heads = [_minimal_head(*head) for head in heads_of(attention)]
    apart = stack_forms(heads)
    if attention.heads == 1:
        return apart
    decays = np.array([decay for *_, decay in heads_of(attention)])
    groups = [[head for head, its in zip(heads, decays, strict=True) if its == one] for one in np.unique(decays)]
    together = stack_forms([_share(group) for group in groups])
    return min(together, apart, key=lambda form: (form.memory + len(form.queries), form.products))


def memory_count(attention: LinearAttention) -> list[tuple[int, int]]:
    """(memory, queries) of each head after the formula r·s − o(o−1)/2 and s."""
    counts = []
    for w_value, w_key, w_query, _ in heads_of(attention):
        rows, columns = row_space(w_value), factor_key_query(w_key, w_query)[0]
        r, s = len(rows), len(columns)
        o = len(_intersect(rows, columns)[0])
        counts.append((r * s - o * (o - 1) // 2, s))
    return counts


def _minimal_head(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float) -> KeyValueForm:
    columns, queries = factor_key_query(w_key, w_query)
    rows = row_space(w_value)
    common, rows_only, columns_only = _intersect(rows, columns)
    left, right = np.concatenate([common, rows_only]), np.concatenate([common, columns_only])
    # W_V = coefficients @ left, and M = rightᵀ @ asked: y = coefficients (Σ left x xᵀ rightᵀ) asked x.
    coefficients, asked = w_value @ np.linalg.pinv(left), np.linalg.pinv(right).T @ columns.T @ queries
    r, s, o = len(left), len(right), len(common)
    pairs = [(p, q) for p in range(r) for q in range(s) if not (p < o and q < o and q < p)]
    memory_of = {pair: index for index, pair in enumerate(pairs)}
    reads, asks, outputs = (
        np.zeros((len(pairs), len(pairs))),
        np.zeros((len(pairs), s)),
        np.zeros((r, len(pairs))),
    )
    for index, (p, q) in enumerate(pairs):
        outputs[p, index] = 1
        asks[index, q] = 1
        reads[index, index] = 1
        if p < o and q < o and p != q:  # S_pq (q_p + q_q), for both outputs
            asks[index, p] = 1
            outputs[q, index] = 1
            for diagonal in (p, q):  # and (S_pp − Σ_{q≠p} S_pq) q_p
                reads[memory_of[diagonal, diagonal], index] = -1
    return KeyValueForm(
        values=left[[p for p, _ in pairs]].reshape(-1, w_value.shape[1]),
        keys=right[[q for _, q in pairs]].reshape(-1, w_value.shape[1]),
        decay=np.full(len(pairs), decay),
        queries=asked,
        reads=reads,
        asks=asks,
        readout=coefficients @ outputs,
    )


def _intersect(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orthonormal bases: of the intersection, and of what each space has beyond it."""
    # Sines of the principal angles, not cosines: a cosine near 1 hides angles below 1e-8.
    mixing, sines, _ = np.linalg.svd(columns - (columns @ rows.T) @ rows)
    outside = np.concatenate([sines, np.zeros(len(columns) - len(sines))]) > SAME_DIRECTION
    common, columns_only = plain(mixing[:, ~outside].T @ columns), mixing[:, outside].T @ columns
    beyond, _, _ = np.linalg.svd(rows - (rows @ common.T) @ common)
    return common, beyond[:, : len(rows) - len(common)].T @ rows, columns_only


def _share(heads: list[KeyValueForm]) -> KeyValueForm:
    """Heads of one decay through one basis of memories and of queries."""
    memories = np.concatenate([_symmetric(head.values, head.keys) for head in heads])
    chosen = _pivots(memories)
    values = np.concatenate([head.values for head in heads])[chosen]
    keys = np.concatenate([head.keys for head in heads])[chosen]
    queries = row_space(np.concatenate([head.queries for head in heads]))
    # What each head reads, as functionals of the shared memories and queries.
    basis, back = memories[chosen], np.linalg.pinv(queries)
    tensor = np.zeros((len(heads[0].readout), len(chosen), len(queries)))
    for head in heads:
        reads = head.reads @ np.linalg.lstsq(basis.T, _symmetric(head.values, head.keys).T, rcond=None)[0].T
        tensor += np.einsum("ir,rp,rk->ipk", head.readout, reads, head.asks @ head.queries @ back)
    # One product for each (output direction, query): rank of outputs × queries.
    outputs, sizes, _ = np.linalg.svd(tensor.reshape(len(tensor), -1), full_matrices=False)
    rank = numerical_rank(sizes, tensor.reshape(len(tensor), -1).shape)
    directions = outputs[:, :rank]
    reads = np.einsum("io,ipk->okp", directions, tensor).reshape(-1, len(chosen))
    return KeyValueForm(
        values=values,
        keys=keys,
        decay=np.full(len(chosen), heads[0].decay[0] if len(heads[0].decay) else 1.0),
        queries=queries,
        reads=reads,
        asks=np.tile(np.eye(len(queries)), (rank, 1)),
        readout=np.repeat(directions, len(queries), axis=1),
    )


def _symmetric(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The quadratic form of each product v·x k·x as a flat symmetric matrix."""
    outer = values[:, :, None] * keys[:, None, :]
    return ((outer + outer.transpose(0, 2, 1)) / 2).reshape(len(values), values.shape[1] ** 2)


def _pivots(forms: np.ndarray) -> list[int]:
    """Rows that span all rows, picked greedily by what is left of them (pivoted Gram–Schmidt, done twice)."""
    left, chosen, basis = forms.copy(), [], np.zeros((0, forms.shape[1]))
    largest = max(np.linalg.norm(forms, axis=1).max(initial=0), np.finfo(np.float64).tiny)
    while len(chosen) < min(forms.shape):
        sizes = np.linalg.norm(left, axis=1)
        pivot = int(np.argmax(sizes))
        if sizes[pivot] <= SAME_DIRECTION * 100 * largest:
            break
        direction = left[pivot] / sizes[pivot]
        direction -= basis.T @ (basis @ direction)
        direction /= np.linalg.norm(direction)
        basis = np.concatenate([basis, direction[None]])
        left -= np.outer(left @ direction, direction)
        chosen.append(pivot)
    return chosen
