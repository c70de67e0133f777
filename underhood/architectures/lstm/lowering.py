"""Appendix A.2, Table 4: attention → LSTM in one layer, gated RNN → LSTM in two.

The products g ⊙ c̃ are the gating, the cell state sums them, f is λ; in one layer, the output gate is the query. The
gates σ are linearised by copies. tanh is linear for small arguments, and scales are free in floating point: a
candidate of size 2⁻³⁰ costs no accuracy.
"""

from __future__ import annotations

import numpy as np

from underhood.algebra.key_values import KeyValueForm
from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.lstm.cell import CANDIDATE, FORGET, INPUT, LSTM, OUTPUT
from underhood.architectures.stack.cell import Stack
from underhood.compiler.envelope import Envelope, Rounding, positive, power_of_two
from underhood.compiler.forms import coordinates
from underhood.compiler.linearise import Linearisation, best_scale, centred
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import copy_products, gated_products
from underhood.compiler.targets import register_target
from underhood.compiler.ways import either, through_form, through_gated
from underhood.layers.linear import Linear

OPEN, SHUT = 1000.0, -1000.0  # σ is exactly 1 and 0 there: the ±∞ of Table 4


def forget_bias(lambda_: np.ndarray) -> np.ndarray:
    """b with σ(b) = λ, exactly at 0 and 1."""
    inner = np.clip(lambda_, 1e-300, 1 - 1e-16)
    return np.where(lambda_ == 1, OPEN, np.where(lambda_ == 0, SHUT, np.log(inner) - np.log1p(-inner)))


def attention_to_lstm(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: c sums keys times values, o multiplies by the query; copies for both gates.

    An output gate multiplies its own cell state only: each product of the form with each memory it reads gets cells
    of its own.
    """
    product, memory = np.nonzero(form.reads)
    asked = form.asks @ form.queries
    key_bounds, value_bounds, query_bounds = map(envelope.linear, (form.keys, form.values, asked))
    memory_bounds = key_bounds * value_bounds * envelope.steps(form.decay)

    def error(scheme: Linearisation, rounding: Rounding) -> float:
        # Copies that differ in the output gate alone sum the same numbers and round them alike: what c has
        # gathered over time is amplified by the copies of g only, the last product by both.
        truncation = 2 * scheme.truncation + scheme.truncation**2 + envelope.tiny**2
        grown = rounding.grown(scheme)
        return truncation + rounding.summing * grown + 2 * rounding.step * grown**2

    scheme = best_scale(lambda scale: centred(order, scale), lambda scheme: error(scheme, envelope.typical))
    # Axes: cells of the form, copies of the gate g, copies of the gate o.
    pairs, copies = len(product), scheme.copies
    pair, copy_g, copy_o = (axis.ravel() for axis in np.indices((pairs, copies, copies)))
    row, cell = product[pair], memory[pair]
    candidate_scale = power_of_two(envelope.tiny / positive(key_bounds * envelope.steps(form.decay)))[cell]
    value_scale, query_scale = positive(value_bounds)[cell], positive(query_bounds)[row]
    u, b = np.zeros((4, len(pair), form.d)), np.zeros((4, len(pair)))
    b[FORGET] = forget_bias(form.decay)[cell]
    u[CANDIDATE] = form.keys[cell] * candidate_scale[:, None]
    u[INPUT] = form.values[cell] * (scheme.nodes[copy_g] / value_scale)[:, None]
    u[OUTPUT] = asked[row] * (scheme.nodes[copy_o] / query_scale)[:, None]
    weight = scheme.weights[copy_g] * value_scale * scheme.weights[copy_o] * query_scale / candidate_scale
    readout = form.readout[:, row] * (form.reads[row, cell] * weight)[None]
    model = Stack(
        Linear(np.eye(form.d), np.zeros(form.d)), (LSTM(u, None, b),), Linear(readout, np.zeros(len(readout)))
    )
    output_bounds = np.abs(form.readout) @ ((np.abs(form.reads) @ memory_bounds) * query_bounds)
    return Lowered(model, error(scheme, envelope.worst) + envelope.dot(form.products), output_bounds)


def to_lstm(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: g ⊙ c̃ is the input gating in the first, with f = λ, the output gating in the second, with f = 0."""
    whole = gated_products(source, envelope)

    def error(scheme: Linearisation, rounding: Rounding) -> float:
        amplified = (rounding.summing + 2 * rounding.step) * rounding.grown(scheme)
        return 2 * scheme.truncation + scheme.truncation**2 + envelope.tiny**2 + amplified

    scheme = best_scale(lambda scale: centred(order, scale), lambda scheme: error(scheme, envelope.typical))
    incoming, outgoing = copy_products(whole.inputs, scheme), copy_products(whole.outputs, scheme)
    span = whole.inputs.value_bounds * envelope.steps(whole.lambda_)
    small_in = power_of_two(envelope.tiny / positive(span))[incoming.owner]
    first = _product_layer(
        incoming.gates[:, :-1],
        incoming.values[:, :-1] * small_in[:, None],
        gate_bias=incoming.gates[:, -1],
        value_bias=incoming.values[:, -1] * small_in,
        lambda_=whole.lambda_[incoming.owner],
    )
    states = incoming.combine / small_in  # h = states @ (outputs of the first layer)
    small_out = power_of_two(envelope.tiny / positive(whole.outputs.value_bounds))[outgoing.owner]
    second = _product_layer(
        outgoing.gates @ states,
        outgoing.values @ states * small_out[:, None],
        gate_bias=np.zeros(len(small_out)),
        value_bias=np.zeros(len(small_out)),
        lambda_=np.zeros(len(small_out)),
    )
    readout = whole.readout @ (outgoing.combine / small_out)
    embedding = Linear(np.eye(whole.d), np.zeros(whole.d))
    model = Stack(embedding, (first, second), Linear(readout, np.zeros(len(readout))))
    relative = error(scheme, envelope.worst) + envelope.dot(len(states)) + envelope.dot(len(outgoing.combine))
    return Lowered(model, relative, whole.output_bounds)


def _product_layer(
    gates: np.ndarray, values: np.ndarray, *, gate_bias: np.ndarray, value_bias: np.ndarray, lambda_: np.ndarray
) -> LSTM:
    """c_t = λ c_{t-1} + σ(gate) tanh(value), handed on as it is."""
    u, b = np.zeros((4, *gates.shape)), np.zeros((4, len(gates)))
    u[CANDIDATE], u[INPUT] = values, gates
    b[FORGET], b[CANDIDATE], b[INPUT], b[OUTPUT] = forget_bias(lambda_), value_bias, gate_bias, OPEN
    return LSTM(u, None, b)


register_target(
    "lstm",
    attention={
        1: either(through_form(attention_to_lstm), through_form(attention_to_lstm, coordinates)),
        2: through_gated(to_lstm),
    },
    gated={2: to_lstm},
    why_not_fewer="the output gate reads the input and not the cell state, so two states cannot be multiplied",
    paper=(2, 1),
)
