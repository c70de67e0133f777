"""Key-value form → gated RNN of Eq. 2 (Figure 1): perfect memories for H, perfect forgets for the queries."""

from __future__ import annotations

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.cells import GatedRNN, Gating, SparseMatrix
from underhood.construct.forms import KeyValueForm, heads_of


def to_gated_rnn(form: KeyValueForm) -> GatedRNN:
    """Memory neurons (λ = decay) first, then query neurons (λ = 0), which read x times the constant 1."""
    memory, queries = form.memory, len(form.queries)
    one = np.zeros((queries, form.d + 1))
    one[:, -1] = 1
    return GatedRNN.from_lambda(
        Gating(
            np.concatenate([_append_zero(form.values), _append_zero(form.queries)]),
            np.concatenate([_append_zero(form.keys), one]),
        ),
        np.concatenate([form.decay, np.zeros(queries)]),
        Gating(
            np.concatenate([form.reads, np.zeros((form.products, queries))], axis=1),
            np.concatenate([np.zeros((form.products, memory)), form.asks], axis=1),
        ),
        form.readout,
    )


def _append_zero(matrix: np.ndarray) -> np.ndarray:
    """No term of degree 1 from here: the constant's column is zero."""
    return np.concatenate([matrix, np.zeros((len(matrix), 1))], axis=1)


def to_sparse_gated_rnn(attention: LinearAttention) -> GatedRNN:
    """Figure 1 without its zeros and repeats, O(d²) a step where the dense matrices take O(d⁴).

    The same neurons in the same order as `to_gated_rnn(figure_1(attention))`. The rows of W_V and W_K repeat: each
    input branch is a selection of the rows of one small matrix; each output row reads one neuron.
    """
    heads, d_value, d_key, d = attention.heads, attention.d_out, attention.d_key, attention.d
    entries, memory = d_value * d_key, heads * d_value * d_key
    value, key = np.divmod(np.arange(entries), d_key)
    offset = np.arange(heads)[:, None]
    weights = heads_of(attention)
    w_value, w_key, w_query = (np.concatenate([head[part] for head in weights]) for part in range(3))
    one = np.zeros((1, d + 1))
    one[0, -1] = 1
    queries = np.arange(heads * d_key)
    return GatedRNN.from_lambda(
        Gating(
            _pick((offset * d_value + value).ravel(), queries + heads * d_value, [w_value, w_query], one),
            _pick((offset * d_key + key).ravel(), np.full(len(queries), heads * d_key), [w_key], one),
        ),
        np.concatenate([np.repeat([head[3] for head in weights], entries), np.zeros(len(queries))]),
        Gating(
            _select(np.arange(memory), memory + len(queries)),
            _select((memory + offset * d_key + key).ravel(), memory + len(queries)),
        ),
        # Output i sums its products of all heads: row i of every head's block of d_key columns.
        SparseMatrix(
            np.ones((d_value, heads * d_key)),
            np.arange(memory).reshape(heads, d_value, d_key).transpose(1, 0, 2).reshape(d_value, -1),
            memory,
        ),
    )


def _pick(memories: np.ndarray, queries: np.ndarray, blocks: list[np.ndarray], one: np.ndarray) -> SparseMatrix:
    rows = np.concatenate([*(_append_zero(block) for block in blocks), one])
    return _select(np.concatenate([memories, queries]), len(rows), rows)


def _select(columns: np.ndarray, width: int, factor: np.ndarray | None = None) -> SparseMatrix:
    return SparseMatrix(np.ones((len(columns), 1)), columns[:, None], width, factor)
