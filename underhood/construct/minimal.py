"""The smallest form of an attention: as few memories, queries and products as can be proven or found.

A head alone takes r·s − o(o−1)/2 memories and as many products (`algebra.key_values`). Several heads of one decay may
share them: their memories span one space of quadratic forms, their queries the joint row space of all W_KᵀW_Q, and
never more than (rank of outputs) × (queries) products are needed in all.
"""

from __future__ import annotations

import numpy as np

from underhood.algebra.key_values import KeyValueForm, smallest_head, stack_forms
from underhood.algebra.subspaces import factor, independent_rows, intersect, numerical_rank, row_space
from underhood.attention.linear import LinearAttention
from underhood.construct.forms import heads_of


def minimal(attention: LinearAttention) -> KeyValueForm:
    """The smaller of: each head on its own, and all heads of one decay through shared memories."""
    heads = [smallest_head(w_value, w_key.T @ w_query, decay) for w_value, w_key, w_query, decay in heads_of(attention)]
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
        rows, columns = row_space(w_value), factor(w_key.T @ w_query)[0]
        r, s = len(rows), len(columns)
        o = len(intersect(rows, columns)[0])
        counts.append((r * s - o * (o - 1) // 2, s))
    return counts


def _share(heads: list[KeyValueForm]) -> KeyValueForm:
    """Heads of one decay through one basis of memories and of queries."""
    together = stack_forms(heads)
    chosen, weights = independent_rows(together.forms)
    queries = row_space(together.queries)
    # What each head reads, as functionals of the shared memories and queries.
    reads, asks = together.reads @ weights, together.asks @ together.queries @ np.linalg.pinv(queries)
    tensor = np.einsum("ir,rp,rk->ipk", together.readout, reads, asks, optimize=True)
    # One product for each (output direction, query): rank of outputs × queries.
    outputs, sizes, _ = np.linalg.svd(tensor.reshape(len(tensor), -1), full_matrices=False)
    rank = numerical_rank(sizes, tensor.reshape(len(tensor), -1).shape)
    directions = outputs[:, :rank]
    reads = np.einsum("io,ipk->okp", directions, tensor).reshape(-1, len(chosen))
    return KeyValueForm(
        values=together.values[chosen],
        keys=together.keys[chosen],
        decay=np.full(len(chosen), together.decay[0] if together.memory else 1.0),
        queries=queries,
        reads=reads,
        asks=np.tile(np.eye(len(queries)), (rank, 1)),
        readout=np.repeat(directions, len(queries), axis=1),
    )
