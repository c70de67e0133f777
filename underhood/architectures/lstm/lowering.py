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
from underhood.compiler.decays import CLOSED, logit
from underhood.compiler.envelope import Envelope, Typical, positive, power_of_two
from underhood.compiler.forms import coordinates, rank_revealed
from underhood.compiler.linearise import Linearisation, best_scale, centred
from underhood.compiler.products import combined, copy_products, gated_products, local
from underhood.compiler.rounding import WEIGHT, Arithmetic, Signal
from underhood.compiler.targets import Lowered, Way, register_target
from underhood.layers.linear import Linear


def attention_to_lstm(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: c sums keys times values, o multiplies by the query; copies for both gates.

    An output gate multiplies its own cell state only: each product of the form with each memory it reads gets cells
    of its own.
    """
    product, memory = np.nonzero(form.reads)
    asked = form.asks @ form.queries
    key_bounds, value_bounds, query_bounds = map(envelope.linear, (form.keys, form.values, asked))

    def error(scheme: Linearisation, rounding: Typical) -> float:
        # What c has gathered over time is amplified by the copies of g only, the last product by both.
        truncation = 2 * scheme.truncation + scheme.truncation**2 + envelope.tiny**2
        return truncation + rounding.summing * scheme.noise + 2 * rounding.step * scheme.noise**2

    scheme = best_scale(lambda scale: centred(order, scale), lambda scheme: error(scheme, envelope.typical))
    # Axes: cells of the form, copies of the gate g, copies of the gate o.
    pairs, copies = len(product), scheme.copies
    pair, copy_g, copy_o = (axis.ravel() for axis in np.indices((pairs, copies, copies)))
    row, cell = product[pair], memory[pair]
    candidate_scale = power_of_two(envelope.tiny / positive(key_bounds * envelope.steps(form.decay)))[cell]
    value_scale, query_scale = positive(value_bounds)[cell], positive(query_bounds)[row]
    u, b = np.zeros((4, len(pair), form.d)), np.zeros((4, len(pair)))
    b[FORGET] = logit(form.decay)[cell]
    u[CANDIDATE] = form.keys[cell] * candidate_scale[:, None]
    u[INPUT] = form.values[cell] * (scheme.nodes[copy_g] / value_scale)[:, None]
    u[OUTPUT] = asked[row] * (scheme.nodes[copy_o] / query_scale)[:, None]
    in_g = scheme.weights[copy_g] * value_scale / candidate_scale
    weight = in_g * scheme.weights[copy_o] * query_scale
    outer = form.readout[:, row] * form.reads[row, cell][None]
    readout = outer * weight[None]
    model = Stack(
        Linear(np.eye(form.d), np.zeros(form.d)), (LSTM(u, None, b),), Linear(readout, np.zeros(len(readout)))
    )
    arithmetic = Arithmetic(envelope)
    x = arithmetic.inputs(form.d)
    g, c, o = (arithmetic.linear(u[gate], x) for gate in (INPUT, CANDIDATE, OUTPUT))
    states = arithmetic.total(arithmetic.times(arithmetic.sigma(g), arithmetic.tanh(c)), form.decay[cell])
    # Copies in o alone have the same c, to the last bit: the errors of Σ_g w_g c_g are multiplied by the query.
    alike = copy_o == 0
    sums = np.zeros((pairs, np.count_nonzero(alike)))
    sums[pair[alike], np.arange(sums.shape[1])] = in_g[alike]
    true_bounds = (key_bounds * value_bounds * envelope.steps(form.decay))[memory]
    held = arithmetic.linear(sums, states[alike], true_bounds).off(scheme.truncation)
    queries = arithmetic.linear(asked, x)[product]
    # What each cell's own last product adds: σ and tanh of numbers that are taken as they are.
    made = arithmetic.times(arithmetic.sigma(o), arithmetic.tanh(Signal(states.reach, np.zeros(len(pair)))))
    last = arithmetic.linear(readout, made).error
    products = Signal(held.size * queries.size, held.error * queries.size).off(scheme.truncation)
    through = np.abs(form.readout[:, product] * form.reads[product, memory][None])
    return Lowered(model, through @ products.error * (1 + scheme.truncation) + last, through @ products.size)


def to_lstm(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: g ⊙ c̃ is the input gating in the first, with f = λ, the output gating in the second, with f = 0."""
    whole, arithmetic = gated_products(source, envelope), Arithmetic(envelope)

    def error(scheme: Linearisation, rounding: Typical) -> float:
        amplified = (rounding.summing + 2 * rounding.step) * scheme.noise
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

    x, largest = arithmetic.with_one(arithmetic.inputs(whole.d)), 2 * order * scheme.scale
    opened = arithmetic.linear(incoming.gates, local(x)).known(np.full(len(small_in), largest))
    candidates = arithmetic.tanh(arithmetic.linear(incoming.values * small_in[:, None], local(x)))
    made = arithmetic.times(arithmetic.sigma(opened), candidates)
    below = arithmetic.again(arithmetic.tanh(arithmetic.total(made, whole.lambda_[incoming.owner], alike=True)))
    gate_error, value_error = (np.abs(rows) @ x.error for rows in (whole.inputs.gates, whole.inputs.values))
    # What is wrong with each product, however often it is summed; then with sums of copies.
    entered = combined(
        arithmetic, whole.inputs, scheme, Signal(made.size, 0 * made.error), 0 * states, gate_error, value_error
    )
    wrong = entered.error * envelope.steps(whole.lambda_) + np.abs(states) @ below.error
    wrong = wrong + arithmetic.decaying(whole.lambda_) * (whole.state_bounds + wrong)
    gate_error, value_error = (np.abs(rows) @ wrong for rows in (whole.outputs.gates, whole.outputs.values))
    # Values of all copies are equal rows: what their product of matrices rounds is shared, too.
    read = np.abs(whole.outputs.values @ states)
    count = np.count_nonzero(read, axis=1) + WEIGHT
    value_error = value_error + arithmetic.gamma(count) * (read @ below.reach) + arithmetic.least
    bounds_out = (whole.outputs.value_bounds + value_error)[outgoing.owner] * small_out
    opened = arithmetic.linear(outgoing.gates @ states, local(below)).known(np.full(len(small_out), largest))
    candidates = arithmetic.tanh(Signal(bounds_out, np.zeros(len(small_out))))
    above = arithmetic.times(arithmetic.sigma(opened), candidates)
    handed = arithmetic.again(arithmetic.tanh(above))
    read = combined(arithmetic, whole.outputs, scheme, handed, readout, gate_error, value_error, whole.readout)
    return Lowered(model, read.error, whole.output_bounds)


def _product_layer(
    gates: np.ndarray, values: np.ndarray, *, gate_bias: np.ndarray, value_bias: np.ndarray, lambda_: np.ndarray
) -> LSTM:
    """c_t = λ c_{t-1} + σ(gate) tanh(value), handed on as it is."""
    u, b = np.zeros((4, *gates.shape)), np.zeros((4, len(gates)))
    u[CANDIDATE], u[INPUT] = values, gates
    b[FORGET], b[CANDIDATE], b[INPUT], b[OUTPUT] = logit(lambda_), value_bias, gate_bias, -CLOSED
    return LSTM(u, None, b)


register_target(
    "lstm",
    attention={
        1: Way(attention_to_lstm, rank_revealed, second=coordinates),
        2: Way(to_lstm, rank_revealed, gated=True),
    },
    gated={2: Way(to_lstm)},
    why_not_fewer="no construction with one layer is known: its output gate reads the input and the output before, "
    "not the cell states of the moment",
    source="docs/theory.md",
    paper=(2, 1),
)
