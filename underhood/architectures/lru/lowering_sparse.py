"""Attention → LRU with sparse matrices: the neurons of lru.py, and as many numbers as a few copies of the weights.

    input    h_ij = Σ_s Σ_c σ(ν_c v_i/V_i) · w_c Q_j k_j            B adds the copies c
    output   y = Σ_i out_i V_i Σ_j Σ_c σ(ν_c q_j/Q_j) · w_c h_ij    the readout adds the copies, and then the keys j

|v_i| ≤ V_i and |q_j| ≤ Q_j. A block repeats rows, so that a factor has to depend on the value i or on the key j alone:
that is why values are in the gate, Q_j is at the keys and V_i in the readout. Two copies cancel without rounding.
"""

from __future__ import annotations

import functools

import numpy as np

from underhood.architectures.gated_rnn.cell import Gating
from underhood.architectures.lru.cell import Form
from underhood.architectures.lru.lowering_parts import balanced, input_error, joint, layers_of, output_error, stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive
from underhood.compiler.heads import Heads, blocks, norm_bounds
from underhood.compiler.linearise import Linearisation
from underhood.compiler.lowered import Lowered
from underhood.layers.linear import Block, SparseMatrix


def _lower(form: Form, source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    heads = blocks(source, envelope)
    count, d_key, d_value, inputs = heads.sizes
    # The gate of In-Skip reads x: queries need no neurons.
    memory, asked = count * d_value * d_key, 0 if form == "in-skip" else count * d_key
    (before, error_in), (after, error_out) = (balanced(envelope, order, error) for error in (input_error, output_error))
    summed = before.copies * memory
    b = [Block(None, 0, memory, tiles=before.copies, transposed=True), *([Block(None, summed, asked)] if asked else [])]
    cells = layers_of(
        form,
        b=SparseMatrix(tuple(b), summed + asked),
        lambda_=np.append(np.repeat(heads.decay, d_value * d_key), np.zeros(asked)),
        c=SparseMatrix((Block(None, 0, memory + asked),), memory + asked),
        into=_into(heads, before, asked),
        out=_out(heads, after, asked),
    )
    values = positive(heads.value_bounds).reshape(-1, 1) * heads.out.T
    readout = Block(values, 0, source.d_out, repeats=d_key, tiles=after.copies, transposed=True)
    # From the third copy on, adding them rounds, too.
    error_in, error_out = (
        error + envelope.roundoff * (order - 1) * scheme.amplification
        for error, scheme in ((error_in, before), (error_out, after))
    )
    rest = joint(before, after) + envelope.dot(d_key) + envelope.dot(count * d_value)
    projected = envelope.dot(inputs)
    bounds, errors = norm_bounds(heads, error_in + projected, projected, error_out + projected, rest)
    model = stack(source.d, cells, SparseMatrix((readout,), after.copies * memory))
    return Lowered.within(model, errors, bounds)


def _into(heads: Heads, scheme: Linearisation, asked: int) -> Gating:
    """Copies of values in the gate and keys behind it; then queries, behind a gate at rest, which gives ½."""
    _, d_key, d_value, inputs = heads.sizes
    values = heads.values / positive(heads.value_bounds)[..., None]
    keys, queries = heads.keys * positive(heads.query_bounds)[..., None], _queries(heads).reshape(-1, inputs)
    gates = [Block(node * rows, 0, inputs, repeats=d_key) for node in scheme.nodes for rows in values]
    behind = [Block(weight * rows, 0, inputs, tiles=d_value) for weight in scheme.weights for rows in keys]
    if asked:
        gates.append(Block(np.zeros((1, inputs)), 0, inputs, repeats=asked))
        behind.append(Block(2 * queries, 0, inputs))
    return Gating(SparseMatrix(tuple(gates), inputs), SparseMatrix(tuple(behind), inputs))


def _out(heads: Heads, scheme: Linearisation, asked: int) -> Gating:
    """Copies of queries in the gate, which reads them from their neurons or makes them of x; states behind it."""
    count, d_key, d_value, inputs = heads.sizes
    memory = count * d_value * d_key
    gates = [
        Block(np.full(d_key, node), memory + head * d_key, d_key, tiles=d_value)
        if asked
        else Block(node * queries, 0, inputs, tiles=d_value)
        for node in scheme.nodes
        for head, queries in enumerate(_queries(heads))
    ]
    behind = [Block(np.full(memory, weight), 0, memory) for weight in scheme.weights]
    columns = memory + asked if asked else inputs
    return Gating(SparseMatrix(tuple(gates), columns), SparseMatrix(tuple(behind), memory + asked))


def _queries(heads: Heads) -> np.ndarray:
    return heads.queries / positive(heads.query_bounds)[..., None]


to_sparse_lru = functools.partial(_lower, "out")
to_sparse_lru_in_out = functools.partial(_lower, "in-out")
to_sparse_lru_in_skip = functools.partial(_lower, "in-skip")
