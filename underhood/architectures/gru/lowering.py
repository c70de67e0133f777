"""What Table 3 calls impossible: gated RNN → GRU in two layers, and attention → GRU in one.

Appendix A.3 argues that a GRU cannot form (w·x)(a·x), because h_{t-1} leaks into it. The leak is the way to do it.
Let the update gate nearly shut, z_t = σ(b + ε w·x_t) ≈ δ e^{ε w·x_t} with δ = σ(b) tiny. Then

    h_t = (1 − z_t) h_{t-1} + z_t h̃_t ≈ h_{t-1} + δ e^{ε w·x_t} η a·x_t

sums the products: copies at ±ε differ by 2δεη Σ_s (w·x_s)(a·x_s), up to a part δ·T that leaks away (δ = 2⁻⁶⁰ by
default) and ε² that further copies cancel. A key-value memory is such a sum as it stands. A product of this moment is
the difference of such a sum and its value a step ago, which a neuron with z = 1 holds: its candidate reads h_{t-1}.
"""

from __future__ import annotations

import math

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.gru.lowering_attention import attention_to_gru
from underhood.architectures.gru.lowering_layer import (
    LEAK,
    Layer,
    balance,
    bias_of,
    difference,
    difference_error,
    summed_error,
)
from underhood.architectures.stack.cell import Stack
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.linearise import Linearisation
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import Copies, GatedProducts, copy_products, gated_products
from underhood.compiler.targets import register_target
from underhood.compiler.ways import economical, through_form, through_gated
from underhood.layers.linear import Linear


def to_gru(source: GatedRNN, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """Two layers: input gating and perfect memories in the first, other recurrence and output gating in the second."""
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = bias_of(leak)
    whole = gated_products(source, envelope)
    steps, worst = float(envelope.horizon), envelope.worst.around(bias)
    before, after = (
        balance(order, leak, envelope.typical.around(bias), error) for error in (summed_error, difference_error)
    )
    # Products that are not summed with λ = 1 are the difference of a sum and what it was a step ago.
    passing = np.flatnonzero(~whole.inputs.linear & (whole.lambda_ != 1))
    first, from_first = _first_layer(whole, before, envelope, bias, passing)
    second, readout = _second_layer(whole, after, envelope, bias, passing[whole.lambda_[passing] > 0], from_first)
    relative = summed_error(before, worst) + difference_error(after, worst) + envelope.tiny**2
    relative += 2 * leak * steps * math.exp(order * max(before.scale, after.scale)) + envelope.dot(len(whole.lambda_))
    if len(passing):  # their difference is taken a layer earlier
        relative += difference_error(before, worst)
    embedding = Linear(np.eye(whole.d + 1, whole.d), np.append(np.zeros(whole.d), 1.0))
    model = Stack(embedding, (first.build(), second.build()), Linear(readout, np.zeros(len(readout))))
    return Lowered(model, relative, whole.output_bounds)


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


register_target(
    "gru",
    attention={1: through_form(attention_to_gru), 2: through_gated(to_gru, economical)},
    gated={2: to_gru},
    tolerances={1: 1e-4, 2: 1e-6},
    why_not_fewer="a product of two states of this moment needs the sums that a layer below has made",
    source="docs/theory.md, against the dash of Table 3",
    paper=(None, None),
    default_attention=2,
)
