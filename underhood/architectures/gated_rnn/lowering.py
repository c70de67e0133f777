"""Key-values → gated RNN of Eq. 2 (Figure 1): perfect memories for H, perfect forgets for the queries.

Exact but for rounding, in three sizes: as Figure 1, as Section 2.2, and the smallest.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import compact, compact_coordinates, figure_1, heads_of, minimal
from underhood.compiler.products import gated_products
from underhood.compiler.rounding import Arithmetic, Signal
from underhood.compiler.targets import ROUNDING_ONLY, Lowered, Way, register_target
from underhood.layers.linear import Block, SparseMatrix, dense


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


def to_gated_rnn(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """A gated RNN is one already, but for the precision of its weights: the errors are those of its own arithmetic."""
    whole, arithmetic = gated_products(source, envelope), Arithmetic(envelope)
    model = GatedRNN.from_lambda(source.input_gating, whole.lambda_, source.output_gating, source.readout)

    def gated(gating: Gating, signal: Signal, bounds: np.ndarray) -> Signal:
        branches = (arithmetic.linear(dense(matrix), signal) for matrix in (gating.w_m, gating.w_x))
        return arithmetic.times(*branches).known(bounds)

    entered = gated(source.input_gating, arithmetic.with_one(arithmetic.inputs(source.d)), whole.inputs.bounds)
    states = arithmetic.total(entered, whole.lambda_)
    read = arithmetic.linear(whole.readout, gated(source.output_gating, states, whole.outputs.bounds))
    return Lowered(model, read.error, whole.output_bounds)


def to_sparse(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """Figure 1 without its zeros. A value v_i errs as v_i k_j q_j does, whatever j: nothing is written out."""
    arithmetic = Arithmetic(envelope)
    x, bounds, errors = arithmetic.inputs(source.d), 0.0, 0.0
    for w_value, w_key, w_query, decay in heads_of(source):
        values, keys, queries = (arithmetic.linear(rows, x) for rows in (w_value, w_key, w_query))
        pairs = arithmetic.times(values[:, None], keys[None])
        products = arithmetic.times(arithmetic.total(pairs, decay), queries[None])
        bounds = bounds + products.size.sum(axis=1)
        errors = errors + products.error.sum(axis=1)
    adding = arithmetic.gamma(source.heads * source.d_key + 1)
    return Lowered(to_sparse_gated_rnn(source), errors + adding * (bounds + errors), np.asarray(bounds))


register_target(
    "gated-rnn",
    attention={1: Way(to_gated_rnn, figure_1, gated=True, sparse=to_sparse, sparse_cost="compile")},
    gated={1: Way(to_gated_rnn)},
    tolerances=ROUNDING_ONLY,
    source="Section 2.1",
)
register_target(
    "gated-rnn-compact",
    attention={1: Way(to_gated_rnn, compact, gated=True, second=compact_coordinates)},
    tolerances=ROUNDING_ONLY,
    source="Section 2.1",
)
register_target(
    "gated-rnn-minimal",
    attention={1: Way(to_gated_rnn, minimal, gated=True)},
    tolerances=ROUNDING_ONLY,
    source="Section 2.1",
)
