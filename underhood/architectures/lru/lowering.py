"""Appendix A.1: gated RNN → LRU, In-Out in one layer, Out and In-Skip in two; attention → In-Skip in one.

The GLU σ(W_m x) ⊙ (W_x x) is a gating whose gate is linearised by copies; the linear map that follows it (B, or
the readout) combines them. λ is the source's, real; γ is set to 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.architectures.lru.cell import Form
from underhood.architectures.lru.lowering_parts import (
    balanced,
    cell,
    input_error,
    joint,
    layers_of,
    output_error,
    stack,
)
from underhood.architectures.lru.lowering_sparse import to_sparse_lru, to_sparse_lru_in_out, to_sparse_lru_in_skip
from underhood.compiler.envelope import Envelope, Rounding, positive
from underhood.compiler.linearise import Linearisation
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import Copies, Products, copy_products, gated_products
from underhood.compiler.targets import DenseOrSparse, register_target
from underhood.compiler.ways import through_form, through_gated


def to_lru(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: the GLU of the first is the input gating, that of the second the output gating."""
    return _lower(source, envelope, order, "out")


def to_lru_in_out(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """One layer: it has both gatings."""
    return _lower(source, envelope, order, "in-out")


def to_lru_in_skip(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: the input gating of the second is the output gating; the gates that read x rest at ½."""
    return _lower(source, envelope, order, "in-skip")


def _lower(source: GatedRNN, envelope: Envelope, order: int, form: Form) -> Lowered:
    whole = gated_products(source, envelope)
    incoming, before, error_in = _copied(whole.inputs, envelope, order, input_error)
    outgoing, after, error_out = _copied(whole.outputs, envelope, order, output_error)
    n, m = len(whole.lambda_), len(whole.outputs.gates)
    glu_in, glu_out = Gating(incoming.gates, incoming.values), Gating(outgoing.gates, outgoing.values)
    scaling = 1.0
    if form != "in-skip":
        cells = layers_of(form, b=incoming.combine, lambda_=whole.lambda_, c=np.eye(n), into=glu_in, out=glu_out)
    else:
        # Gates at rest give ½: the states arrive halved in the second layer, and the outputs halved once more.
        halves = Gating(2 * outgoing.gates, 2 * outgoing.values)
        rest = (np.zeros((n, whole.d + 1)), np.eye(n)), (np.zeros((m, n)), np.eye(m))
        cells = [
            cell(
                "in-skip",
                b=incoming.combine,
                lambda_=whole.lambda_,
                c=np.eye(n),
                out=Gating(*rest[0]),
                into=glu_in,
            ),
            cell(
                "in-skip",
                b=outgoing.combine,
                lambda_=np.zeros(m),
                c=np.eye(m),
                out=Gating(*rest[1]),
                into=halves,
            ),
        ]
        scaling = 2.0
    readout = scaling * (whole.readout if form == "in-skip" else whole.readout @ outgoing.combine)
    relative = joint(before, after) + error_in + error_out + envelope.dot(n) + envelope.dot(m)
    return Lowered(stack(whole.d, cells, readout), relative, whole.output_bounds)


def attention_to_lru_in_skip(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: the gate that reads x makes the queries, and multiplies the key-values behind it."""
    constant = np.zeros((form.memory, 1))
    values, keys = np.hstack([form.values, constant]), np.hstack([form.keys, constant])
    asked = form.asks @ form.queries
    inputs = _plain_products(keys, values, envelope.linear(form.keys), envelope.linear(form.values))
    incoming, before, error_in = _copied(inputs, envelope, order, input_error)
    memory_bounds = inputs.bounds * envelope.steps(form.decay)
    read_bounds = np.abs(form.reads) @ memory_bounds
    outputs = _plain_products(
        np.hstack([asked, np.zeros((form.products, 1))]),
        np.eye(form.products),
        envelope.linear(asked),
        read_bounds,
    )
    outgoing, after, error_out = _copied(outputs, envelope, order, output_error)
    cells = layers_of(
        "in-skip",
        b=incoming.combine,
        lambda_=form.decay,
        c=form.reads,
        into=Gating(incoming.gates, incoming.values),
        out=Gating(outgoing.gates, outgoing.values),
    )
    relative = joint(before, after) + error_in + error_out + envelope.dot(form.memory) + envelope.dot(form.products)
    model = stack(form.d, cells, form.readout @ outgoing.combine)
    return Lowered(model, relative, np.abs(form.readout) @ outputs.bounds)


def _plain_products(
    gates: np.ndarray, values: np.ndarray, gate_bounds: np.ndarray, value_bounds: np.ndarray
) -> Products:
    none = np.zeros(len(gates))
    return Products(gates, values, positive(gate_bounds), value_bounds, none > 0, none)


def _copied(
    products: Products, envelope: Envelope, order: int, error: Callable[[Linearisation, Rounding], float]
) -> tuple[Copies, Linearisation, float]:
    scheme, worst = balanced(envelope, order, error)
    return copy_products(products, scheme), scheme, worst


SPARSE = "compile lru-in-out, sparse"  # all three take about the same
register_target(
    "lru",
    attention={2: DenseOrSparse(through_gated(to_lru), to_sparse_lru, SPARSE)},
    gated={2: to_lru},
    why_not_fewer="one layer has output gating only, and key-values need gating before the recurrence",
    paper=(2, 2),
)
register_target(
    "lru-in-out",
    attention={1: DenseOrSparse(through_gated(to_lru_in_out), to_sparse_lru_in_out, SPARSE)},
    gated={1: to_lru_in_out},
)
register_target(
    "lru-in-skip",
    attention={
        1: DenseOrSparse(through_form(attention_to_lru_in_skip), to_sparse_lru_in_skip, SPARSE),
        2: through_gated(to_lru_in_skip),
    },
    gated={2: to_lru_in_skip},
    why_not_fewer="the m branch of the output gating reads x, so two states cannot be multiplied in one layer",
    paper=(2, 1),
)
