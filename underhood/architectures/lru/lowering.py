"""Appendix A.1: gated RNN → LRU, In-Out in one layer, Out and In-Skip in two; attention → In-Skip in one.

The GLU σ(W_m x) ⊙ (W_x x) is a gating whose gate is linearised by copies; the linear map that follows it (B, or
the readout) combines them. λ is the source's, real: B, C and D have no imaginary part. γ is set to 1.

Sparse, from attention, the same neurons take as many numbers as a few copies of the weights:

    input    h_ij = Σ_s Σ_c σ(ν_c v_i/V_i) · w_c Q_j k_j            B adds the copies c
    output   y = Σ_i out_i V_i Σ_j Σ_c σ(ν_c q_j/Q_j) · w_c h_ij    the readout adds the copies, and then the keys j

|v_i| ≤ V_i and |q_j| ≤ Q_j. A block repeats rows, so that a factor has to depend on the value i or on the key j alone:
that is why values are in the gate, Q_j is at the keys and V_i in the readout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating, nu_of
from underhood.architectures.lru.cell import LRU, Form
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, Typical, positive
from underhood.compiler.forms import rank_revealed
from underhood.compiler.heads import Heads, blocks, norm_bounds
from underhood.compiler.linearise import Linearisation, best_scale, centred
from underhood.compiler.products import Copies, Products, combined, copy_products, gated_copies, gated_products
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic, Signal
from underhood.compiler.targets import Lowered, Way, register_target
from underhood.layers.linear import Block, Linear, Matrix, SparseMatrix

NO_PHASE = -1000.0  # θ = exp(−1000) = 0: the real axis


def to_lru(form: Form, source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """`out`: the GLU of one layer is the input gating, that of a second the output gating. `in-out`: one has both.

    `in-skip`: the input gating of a second layer is the output gating; the gates that read x rest at ½.
    """
    whole, arithmetic = gated_products(source, envelope), Arithmetic(envelope)
    before, after = _scale(envelope, order, _input_error), _scale(envelope, order, _output_error)
    incoming, outgoing = copy_products(whole.inputs, before), copy_products(whole.outputs, after)
    n, m = len(whole.lambda_), len(whole.outputs.gates)
    glu_in, glu_out = Gating(incoming.gates, incoming.values), Gating(outgoing.gates, outgoing.values)
    x = arithmetic.again(arithmetic.with_one(arithmetic.inputs(whole.d)))
    entered = _products(arithmetic, whole.inputs, incoming, before, (x, x))
    states = arithmetic.again(arithmetic.total(entered, whole.lambda_))  # C, or a gate at rest, hands them on
    states = states.known(whole.state_bounds)
    if form != "in-skip":
        cells = _layers(form, b=incoming.combine, lambda_=whole.lambda_, c=np.eye(n), into=glu_in, out=glu_out)
        readout = whole.readout @ outgoing.combine
        read = _products(arithmetic, whole.outputs, outgoing, after, (states, states), whole.readout)
    else:
        # Gates at rest give ½: the states arrive halved in the second layer, and the outputs halved once more.
        halves = Gating(2 * outgoing.gates, 2 * outgoing.values)
        rest = Gating(np.zeros((n, whole.d + 1)), np.eye(n)), Gating(np.zeros((m, n)), np.eye(m))
        cells = [
            _cell("in-skip", b=incoming.combine, lambda_=whole.lambda_, c=np.eye(n), out=rest[0], into=glu_in),
            _cell("in-skip", b=outgoing.combine, lambda_=np.zeros(m), c=np.eye(m), out=rest[1], into=halves),
        ]
        readout = 2 * whole.readout
        products = _products(arithmetic, whole.outputs, outgoing, after, (states, states))
        read = arithmetic.linear(whole.readout, arithmetic.again(products))
    return Lowered(_stack(whole.d, cells, readout), read.error, whole.output_bounds)


def attention_to_lru_in_skip(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: the gate that reads x makes the queries, and multiplies the key-values behind it."""
    arithmetic, constant = Arithmetic(envelope), np.zeros((form.memory, 1))
    before, after = _scale(envelope, order, _input_error), _scale(envelope, order, _output_error)
    values, keys = np.hstack([form.values, constant]), np.hstack([form.keys, constant])
    asked = form.asks @ form.queries
    inputs = _plain_products(keys, values, envelope.linear(form.keys), envelope.linear(form.values))
    incoming = copy_products(inputs, before)
    x = arithmetic.with_one(arithmetic.inputs(form.d))
    memory = arithmetic.total(_products(arithmetic, inputs, incoming, before, (x, x)), form.decay)
    read = arithmetic.linear(form.reads, memory)
    queries = np.hstack([asked, np.zeros((form.products, 1))])
    outputs = _plain_products(queries, np.eye(form.products), envelope.linear(asked), read.size)
    outgoing = copy_products(outputs, after)
    cells = _layers(
        "in-skip",
        b=incoming.combine,
        lambda_=form.decay,
        c=form.reads,
        into=Gating(incoming.gates, incoming.values),
        out=Gating(outgoing.gates, outgoing.values),
    )
    readout, bounds = form.readout @ outgoing.combine, np.abs(form.readout) @ outputs.bounds
    errors = _products(arithmetic, outputs, outgoing, after, (x, read), form.readout).error
    return Lowered(_stack(form.d, cells, readout), errors, bounds)


def _products(
    arithmetic: Arithmetic,
    products: Products,
    copies: Copies,
    scheme: Linearisation,
    read: tuple[Signal, Signal],
    out: np.ndarray | None = None,
) -> Signal:
    """What a GLU and the map behind it make of what its branches read."""
    gate_error, value_error = (
        np.abs(rows) @ signal.error for rows, signal in zip((products.gates, products.values), read, strict=True)
    )
    made = gated_copies(arithmetic, copies, *read, scheme.order * scheme.scale)
    matrix = copies.combine if out is None else out @ copies.combine
    return combined(arithmetic, products, scheme, made, matrix, gate_error, value_error, out)


def _plain_products(
    gates: np.ndarray, values: np.ndarray, gate_bounds: np.ndarray, value_bounds: np.ndarray
) -> Products:
    none = np.zeros(len(gates))
    return Products(gates, values, positive(gate_bounds), value_bounds, none > 0, none)


def _input_error(scheme: Linearisation, rounding: Typical) -> float:
    """Copies cancel before they are summed."""
    return rounding.step * scheme.noise + rounding.summing


def _output_error(scheme: Linearisation, rounding: Typical) -> float:
    return rounding.step * scheme.noise


def _scale(envelope: Envelope, order: int, error: Callable[[Linearisation, Typical], float]) -> Linearisation:
    """The scale that balances truncation with typical rounding."""
    return best_scale(
        lambda scale: centred(order, scale), lambda scheme: scheme.truncation + error(scheme, envelope.typical)
    )


def _layers(form: Form, *, b: Matrix, lambda_: np.ndarray, c: Matrix, into: Gating, out: Gating) -> list[LRU]:
    """One layer with both gatings; two of the usual LRU, where the GLU of the first is the input gating."""
    if form != "out":
        return [_cell(form, b=b, lambda_=lambda_, c=c, out=out, into=into)]
    carry = np.eye(into.w_m.shape[1])
    first = _cell("out", b=carry, lambda_=np.zeros(len(carry)), c=carry, out=into)
    return [first, _cell("out", b=b, lambda_=lambda_, c=c, out=out)]


def _cell(form: Form, *, b: Matrix, lambda_: np.ndarray, c: Matrix, out: Gating, into: Gating | None = None) -> LRU:
    n = len(lambda_)
    zeros = SparseMatrix.zeros if isinstance(b, SparseMatrix) else lambda *shape: np.zeros(shape)
    return LRU(
        nu_log=nu_of(np.asarray(lambda_, np.float64)),
        theta_log=np.full(n, NO_PHASE),
        gamma_log=np.zeros(n),
        b_real=b,
        b_imag=zeros(*b.shape),
        c_real=c,
        c_imag=zeros(*c.shape),
        skip=zeros(c.shape[0], b.shape[1]),
        output_gating=out,
        input_gating=into,
        form=form,
    )


def _stack(d: int, cells: list[LRU], readout: Matrix) -> Stack:
    """The embedding appends the constant 1 that the networks of Eq. 2 read."""
    embedding = Linear(np.eye(d + 1, d), np.append(np.zeros(d), 1.0))
    return Stack(embedding, tuple(cells), Linear(readout, np.zeros(readout.shape[0])))


def to_sparse_lru(form: Form, source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """The neurons of the dense network in matrices of blocks."""
    heads = blocks(source, envelope)
    count, d_key, d_value, _ = heads.sizes
    # The gate of In-Skip reads x: queries need no neurons.
    memory, asked = count * d_value * d_key, 0 if form == "in-skip" else count * d_key
    before, after = _scale(envelope, order, _input_error), _scale(envelope, order, _output_error)
    summed = before.copies * memory
    b = [Block(None, 0, memory, tiles=before.copies, transposed=True), *([Block(None, summed, asked)] if asked else [])]
    cells = _layers(
        form,
        b=SparseMatrix(tuple(b), summed + asked),
        lambda_=np.append(np.repeat(heads.decay, d_value * d_key), np.zeros(asked)),
        c=SparseMatrix((Block(None, 0, memory + asked),), memory + asked),
        into=_into(heads, before, asked),
        out=_out(heads, after, asked),
    )
    values = positive(heads.value_bounds).reshape(-1, 1) * heads.out.T
    readout = Block(values, 0, source.d_out, repeats=d_key, tiles=after.copies, transposed=True)
    bounds, errors = _sparse_errors(heads, before, after, envelope)
    model = _stack(source.d, cells, SparseMatrix((readout,), after.copies * memory))
    return Lowered(model, errors, bounds)


def _sparse_errors(
    heads: Heads, before: Linearisation, after: Linearisation, envelope: Envelope
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the outputs, and errors: of each factor against its largest value, amplified by the copies."""
    arithmetic = Arithmetic(envelope)
    count, d_key, d_value, inputs = heads.sizes
    projected = float(arithmetic.gamma(inputs + WEIGHT))
    opened = (ELEMENTARY + 4 * WEIGHT) * arithmetic.unit  # σ, products, and neurons that hand on
    adding = arithmetic.gamma(d_key * after.copies + count * d_value + WEIGHT)
    of_values = before.amplification * (opened + arithmetic.gamma(before.copies + WEIGHT))
    of_values += before.gain * (2 * projected + arithmetic.cast) + float(np.max(arithmetic.summing(heads.decay)))
    of_keys = before.amplification * projected + arithmetic.cast
    of_queries = after.amplification * (opened + adding) + after.gain * (2 * projected + 2 * opened + arithmetic.cast)
    limits = (1 + before.truncation) * (1 + after.truncation) - 1
    values, keys, queries = (float(np.expm1(part)) for part in (of_values, of_keys, of_queries))
    bounds, errors = norm_bounds(heads, values, keys, queries, limits)
    largest = positive(heads.value_bounds) * np.max(heads.steps) * d_key * (1 + heads.steps[:, None])
    underflow = 64 * inputs * before.amplification * after.amplification * arithmetic.least
    return bounds, errors + heads.left_out + underflow * (np.abs(heads.out) @ largest.ravel() + 1)


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


SPARSE_COST = "compile lru-in-out, sparse"  # all three take about the same


def _from_attention(form: Form) -> Way:
    """Through a gated RNN; in matrices of blocks where they would be large."""
    lower, sparse = functools.partial(to_lru, form), functools.partial(to_sparse_lru, form)
    return Way(lower, rank_revealed, gated=True, sparse=sparse, sparse_cost=SPARSE_COST)


register_target(
    "lru",
    attention={2: _from_attention("out")},
    gated={2: Way(functools.partial(to_lru, "out"))},
    why_not_fewer="no construction with one layer and neurons that do not grow with the horizon is known",
    source="docs/theory.md",
    paper=(2, 2),
)
register_target(
    "lru-in-out",
    attention={1: _from_attention("in-out")},
    gated={1: Way(functools.partial(to_lru, "in-out"))},
)
register_target(
    "lru-in-skip",
    attention={
        1: Way(
            attention_to_lru_in_skip,
            rank_revealed,
            sparse=functools.partial(to_sparse_lru, "in-skip"),
            sparse_cost=SPARSE_COST,
        ),
        2: Way(functools.partial(to_lru, "in-skip"), rank_revealed, gated=True),
    },
    gated={2: Way(functools.partial(to_lru, "in-skip"))},
    why_not_fewer="no construction with one layer is known: the m branch of its output gating reads x, not the states",
    source="docs/theory.md",
    paper=(2, 1),
)
