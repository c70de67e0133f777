"""Key-values → gated RNN of Eq. 2 (Figure 1): perfect memories for H, perfect forgets for the queries.

Exact but for rounding, in three sizes: as Figure 1, as Section 2.2, and the smallest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import compact, compact_coordinates, figure_1, heads_of
from underhood.compiler.lowered import Lowered
from underhood.compiler.minimal import minimal
from underhood.compiler.products import gated_products
from underhood.compiler.targets import ROUNDING_ONLY, DenseOrSparse, register_target
from underhood.compiler.ways import to_gated_rnn
from underhood.layers.linear import Block, SparseMatrix


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


def _exact(form: Callable[[LinearAttention], KeyValueForm], source: LinearAttention, envelope: Envelope) -> Lowered:
    return _rounded(to_gated_rnn(form(source)), envelope)


def _figure_1(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    return _exact(figure_1, source, envelope)


def _sparse(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """An output reads only its own products, as many as there are keys; each is made of three sums over x."""
    rounding = _rounding(envelope, source.heads * source.d_key) + 3 * envelope.dot(source.d)
    return Lowered(to_sparse_gated_rnn(source), rounding, _attention_bounds(source, envelope))


def _compact(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """Section 2.2; the form without an inverse for sources on which the inverse costs too much."""
    lowered = _exact(compact, source, envelope)
    return dataclasses.replace(lowered, otherwise=lambda: _exact(compact_coordinates, source, envelope))


def _minimal(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    return _exact(minimal, source, envelope)


def _same(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """A gated RNN is one already."""
    return _rounded(source, envelope)


def _rounded(model: GatedRNN, envelope: Envelope) -> Lowered:
    return Lowered(model, _rounding(envelope, model.pre_readout), gated_products(model, envelope).output_bounds)


def _rounding(envelope: Envelope, products: int) -> float:
    """Products, sums over time and the sum of the readout, against the source in exact arithmetic."""
    return envelope.worst.summing + 2 * envelope.worst.step + envelope.dot(products)


def _attention_bounds(source: LinearAttention, envelope: Envelope) -> np.ndarray:
    """Σ |v| |k| |q| over the horizon, without writing the form out."""
    total = np.zeros(source.d_out)
    for w_value, w_key, w_query, decay in heads_of(source):
        keys, queries = envelope.linear(w_key), envelope.linear(w_query)
        total += envelope.steps(decay) * envelope.linear(w_value) * np.sum(keys * queries)
    return total


_EXACT = {"tolerances": ROUNDING_ONLY, "source": "Section 2.1"}
register_target("gated-rnn", attention={1: DenseOrSparse(_figure_1, _sparse, "compile")}, gated={1: _same}, **_EXACT)
register_target("gated-rnn-compact", attention={1: _compact}, **_EXACT)
register_target("gated-rnn-minimal", attention={1: _minimal}, **_EXACT)
