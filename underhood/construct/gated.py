"""Key-value form → gated RNN of Eq. 2 (Figure 1): perfect memories for H, perfect forgets for the queries."""

from __future__ import annotations

import numpy as np

from underhood.attention.linear import LinearAttention
from underhood.cells import GatedRNN, Gating, SparseMatrix
from underhood.cells.linear import Block
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
    """Figure 1 as it is drawn, repeat(W_V, d) and all: O(d²) a step where the dense matrices take O(d⁴).

    The same neurons in the same order as `to_gated_rnn(figure_1(attention))`.
    """
    heads, d_value, d_key, d = attention.heads, attention.d_out, attention.d_key, attention.d
    weights = heads_of(attention)
    memory, queries = heads * d_value * d_key, heads * d_key
    one = np.zeros((1, d + 1))
    one[0, -1] = 1
    inputs, states = d + 1, memory + queries
    return GatedRNN.from_lambda(
        Gating(
            _stack(
                inputs,
                *(Block(_append_zero(head[0]), 0, inputs, repeats=d_key) for head in weights),
                *(Block(_append_zero(head[2]), 0, inputs) for head in weights),
            ),
            _stack(
                inputs,
                *(Block(_append_zero(head[1]), 0, inputs, tiles=d_value) for head in weights),
                Block(one, 0, inputs, repeats=queries),
            ),
        ),
        np.concatenate([np.repeat([head[3] for head in weights], d_value * d_key), np.zeros(queries)]),
        Gating(
            _stack(states, Block(None, 0, memory)),
            _stack(states, *(Block(None, memory + head * d_key, d_key, tiles=d_value) for head in range(heads))),
        ),
        _stack(memory, Block(None, 0, d_value, repeats=d_key, tiles=heads, transposed=True)),
    )


def _stack(columns: int, *blocks: Block) -> SparseMatrix:
    return SparseMatrix(blocks, columns)
