"""The smallest form of an attention: as few memories, queries and products as can be proven or found.

A head alone takes r·s − o(o−1)/2 memories and as many products (`algebra.key_values`). Several heads of one decay may
share them: their memories span one space of quadratic forms, their queries the joint row space of all W_KᵀW_Q, and
never more than (rank of outputs) × (queries) products are needed in all.
"""

from __future__ import annotations

from underhood.algebra.key_values import KeyValueForm, smallest_form, smallest_head
from underhood.algebra.subspaces import factor, intersect, row_space
from underhood.attention.linear import LinearAttention
from underhood.compiler.forms import heads_of


def minimal(attention: LinearAttention) -> KeyValueForm:
    """The smaller of: each head on its own, and all heads of one decay through shared memories."""
    return smallest_form(
        [smallest_head(w_value, w_key.T @ w_query, decay) for w_value, w_key, w_query, decay in heads_of(attention)]
    )


def memory_count(attention: LinearAttention) -> list[tuple[int, int]]:
    """(memory, queries) of each head after the formula r·s − o(o−1)/2 and s."""
    counts = []
    for w_value, w_key, w_query, _ in heads_of(attention):
        rows, columns = row_space(w_value), factor(w_key.T @ w_query)[0]
        r, s = len(rows), len(columns)
        o = len(intersect(rows, columns)[0])
        counts.append((r * s - o * (o - 1) // 2, s))
    return counts
