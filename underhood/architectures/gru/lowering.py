"""Where Table 3 has a dash: gated RNN → GRU in two layers, and attention → GRU in one.

Appendix A.3 argues that a GRU cannot form (w·x)(a·x), because h_{t-1} leaks into it. The leak is the way to do it.
Let the update gate nearly shut, z_t = σ(b + ε w·x_t) ≈ δ e^{ε w·x_t} with δ = σ(b) tiny. Then

    h_t = (1 − z_t) h_{t-1} + z_t h̃_t ≈ h_{t-1} + δ e^{ε w·x_t} η a·x_t

sums the products: copies at ±ε differ by 2δεη Σ_s (w·x_s)(a·x_s), up to a part δ·T that leaks away (δ = 2⁻⁶⁰ by
default) and ε² that further copies cancel. A key-value memory is such a sum as it stands. A product of this moment is
the difference of such a sum and its value a step ago, which a neuron with z = 1 holds: its candidate reads h_{t-1}.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.gru.lowering_attention import NO_DECAY, attention_to_gru
from underhood.architectures.gru.lowering_layer import (
    LEAK,
    Layer,
    balance,
    bias_of,
    difference,
    difference_error,
    last_step,
    summed,
    summed_error,
)
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.forms import economical, rank_revealed
from underhood.compiler.linearise import Linearisation
from underhood.compiler.products import Copies, GatedProducts, combined, copy_products, gated_products, local
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic, Signal
from underhood.compiler.targets import Lowered, Way, register_target
from underhood.layers.linear import Linear


def to_gru(source: GatedRNN, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """Two layers: input gating and perfect memories in the first, other recurrence and output gating in the second."""
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = bias_of(leak)
    whole = gated_products(source, envelope)
    before, after = (
        balance(order, leak, envelope.typical.around(bias), error) for error in (summed_error, difference_error)
    )
    # Products that are not summed with λ = 1 are the difference of a sum and what it was a step ago.
    passing = np.flatnonzero(~whole.inputs.linear & (whole.lambda_ != 1))
    first, from_first = _first_layer(whole, before, envelope, bias, passing)
    second, readout = _second_layer(whole, after, envelope, bias, passing[whole.lambda_[passing] > 0], from_first)
    embedding = Linear(np.eye(whole.d + 1, whole.d), np.append(np.zeros(whole.d), 1.0))
    model = Stack(embedding, (first.build(), second.build()), Linear(readout, np.zeros(len(readout))))
    errors = _errors(whole, (before, after), envelope, leak, readout, from_first)
    return Lowered(model, errors, whole.output_bounds)


def _errors(
    whole: GatedProducts,
    schemes: tuple[Linearisation, Linearisation],
    envelope: Envelope,
    leak: float,
    readout: np.ndarray,
    from_first: np.ndarray,
) -> np.ndarray:
    """States with their errors, and the last step of the output gating that reads them."""
    arithmetic, (before, after), bias = Arithmetic(envelope), schemes, bias_of(leak)
    states, held = _state_errors(whole, before, arithmetic, leak)
    steps, outputs = float(envelope.horizon), copy_products(whole.outputs, after)
    count, largest = len(outputs.owner), 2 * after.order * after.scale
    # Rows that read all copies of the states at once round what these have in common; equal rows do so alike.
    reads = np.abs(from_first) @ held
    many = arithmetic.gamma(np.max(np.count_nonzero(from_first, axis=1), initial=1) * len(states.size) + 2 * WEIGHT)
    small = power_of_two(envelope.tiny / positive(whole.outputs.value_bounds))[outputs.owner]
    gate_error, value_error = (np.abs(rows) @ states.error for rows in (whole.outputs.gates, whole.outputs.values))
    value_error = value_error + many * (np.abs(whole.outputs.values) @ reads) + arithmetic.least
    values = (whole.outputs.value_bounds + value_error)[outputs.owner] * small
    own = many * (np.abs(outputs.values) @ states.reach) * small + arithmetic.least  # V h is not such a product
    candidates = Signal(values, own)
    gate_local = many * (np.abs(outputs.gates) @ (reads + states.reach)) + arithmetic.least
    gates = Signal(np.full(count, largest), gate_local)
    made, total = summed(arithmetic, gates, candidates, bias, leak)
    weights = whole.readout @ (outputs.combine / small)
    nothing = Signal(np.zeros(count), np.zeros(count))
    leaking = after.leaking(leak, steps)
    left = combined(arithmetic, whole.outputs, leaking, nothing, 0 * weights, gate_error, value_error, whole.readout)
    return last_step(arithmetic, weights, made, total) + left.error


def _state_errors(
    whole: GatedProducts, scheme: Linearisation, arithmetic: Arithmetic, leak: float
) -> tuple[Signal, np.ndarray]:
    """h of Eq. 2 with its errors, and the size of every neuron of the first layer that it is read from."""
    envelope, products, lambda_ = arithmetic.envelope, whole.inputs, whole.lambda_
    steps, x = float(envelope.horizon), arithmetic.with_one(arithmetic.inputs(whole.d))
    copies = _drop(copy_products(products, scheme), products.linear)
    small = power_of_two(envelope.tiny / positive(products.value_bounds))[copies.owner]
    values, gates = (arithmetic.linear(rows, local(x)) for rows in (copies.values * small[:, None], copies.gates))
    largest = np.full(len(gates.size), 2 * scheme.order * scheme.scale)
    made, total = summed(arithmetic, gates.known(largest), values, bias_of(leak), leak)
    combine = copies.combine / small
    shared = [np.abs(rows) @ x.error for rows in (products.gates, products.values)]
    leaking = scheme.leaking(leak, steps)
    perfect = combined(arithmetic, products, leaking, total, combine, *shared, steps=steps)
    nothing = Signal(made.size, 0 * made.error)
    left = combined(arithmetic, products, leaking, nothing, 0 * combine, *shared)
    passing = Signal(products.bounds, left.error + last_step(arithmetic, combine, made, total))
    # Held by a neuron with z = 1 whose candidate is λ h + η value: each step rounds what it holds.
    linear = arithmetic.linear(products.values * products.constants[:, None], x)
    entering = Signal(
        np.where(products.linear, linear.size, products.bounds), np.where(products.linear, linear.error, passing.error)
    )
    kept = arithmetic.total(entering, lambda_)
    each = envelope.steps(lambda_) * ((2 * ELEMENTARY + WEIGHT + 4) * arithmetic.unit + envelope.tiny**2)
    kept = Signal(kept.size, kept.error + each * (1 + each) * kept.reach)
    states = np.where(~products.linear & (lambda_ == 1), perfect.error, kept.error)
    late = (products.bounds * envelope.horizon * envelope.tiny / positive(products.bounds * envelope.horizon))[
        ~products.linear & (lambda_ != 1)
    ]
    lines = np.full(np.count_nonzero(products.linear), envelope.tiny)
    return Signal(whole.state_bounds, states), np.concatenate([total.reach, lines, late])


def _first_layer(
    whole: GatedProducts, scheme: Linearisation, envelope: Envelope, bias: float, passing: np.ndarray
) -> tuple[Layer, np.ndarray]:
    """The layer, and H_t = from_first @ (its outputs), up to λ H_{t-1} of the decaying."""
    products, lambda_, layer = whole.inputs, whole.lambda_, Layer(whole.d + 1)
    copies = _drop(copy_products(products, scheme), products.linear)
    small = power_of_two(envelope.tiny / positive(products.value_bounds))
    sums = layer.add(value=copies.values * small[copies.owner, None], gate=copies.gates, gate_bias=bias)
    combine = copies.combine / small[copies.owner]  # row n: Σ_s (products of n)
    # Linear inputs need no gate: z = 1 and h̃ = λ h_{t-1} + η value.
    linear = np.flatnonzero(products.linear)
    span = positive(products.bounds * envelope.steps(lambda_))
    small_linear = power_of_two(envelope.tiny / span)[linear]
    lines = layer.add(
        value=products.values[linear] * (products.constants[linear] * small_linear)[:, None],
        recurrent=np.hstack([np.zeros((len(linear), sums.stop)), np.diag(lambda_[linear])]),
    )
    small_late = power_of_two(envelope.tiny / positive(products.bounds * envelope.horizon))[passing]
    late = layer.add(value=np.zeros((len(passing), whole.d + 1)), recurrent=combine[passing] * small_late[:, None])
    from_first = np.zeros((len(lambda_), layer.size))
    from_first[:, sums] = combine
    from_first[linear, np.arange(lines.start, lines.stop)] = 1 / small_linear
    from_first[passing, np.arange(late.start, late.stop)] = -1 / small_late
    return layer, from_first


def _second_layer(
    whole: GatedProducts,
    scheme: Linearisation,
    envelope: Envelope,
    bias: float,
    decaying: np.ndarray,
    from_first: np.ndarray,
) -> tuple[Layer, np.ndarray]:
    """H of neurons with 0 < λ < 1, then the output gating and its sums a step ago; and the readout."""
    layer, lambda_ = Layer(from_first.shape[1]), whole.lambda_
    small_state = power_of_two(envelope.tiny / positive(whole.state_bounds))[decaying]
    held = layer.add(value=from_first[decaying] * small_state[:, None], recurrent=np.diag(lambda_[decaying]))
    from_second = np.zeros((len(lambda_), held.stop))
    from_second[decaying, np.arange(held.stop)] = lambda_[decaying] / small_state
    outputs = copy_products(whole.outputs, scheme)
    small = power_of_two(envelope.tiny / positive(whole.outputs.value_bounds))[outputs.owner]
    made = layer.add(
        value=outputs.values @ from_first * small[:, None],
        recurrent=outputs.values @ from_second * small[:, None],
        gate=outputs.gates @ from_first,
        gate_recurrent=outputs.gates @ from_second,
        gate_bias=bias,
    )
    weights = whole.readout @ (outputs.combine / small)
    return layer, difference(layer, made, weights, whole.output_bounds * envelope.horizon, envelope)


def _drop(copies: Copies, linear: np.ndarray) -> Copies:
    """The copies of products that need a gate."""
    kept = ~linear[copies.owner]
    return Copies(copies.gates[kept], copies.values[kept], copies.combine[:, kept], copies.owner[kept])


def _decays(source: LinearAttention) -> str | None:
    return None if source.decay is None or np.all(np.asarray(source.decay) == 1) else NO_DECAY


register_target(
    "gru",
    attention={1: Way(attention_to_gru, rank_revealed, refuses=_decays), 2: Way(to_gru, economical, gated=True)},
    gated={2: Way(to_gru)},
    tolerances={1: 1e-4, 2: 1e-6},
    why_not_fewer="no construction with one layer is known: a product of two states of this moment needs the sums that "
    "a layer below has made",
    source="docs/theory.md",
    paper=(None, None),
)
