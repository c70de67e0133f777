"""What Table 3 calls impossible: gated RNN → GRU in two layers, and attention → GRU in one.

Appendix A.3 argues that a GRU cannot form (w·x)(a·x), because h_{t-1} leaks into it. The leak is the way to do it.
Let the update gate nearly shut, z_t = σ(b + ε w·x_t) ≈ δ e^{ε w·x_t} with δ = σ(b) tiny. Then

    h_t = (1 − z_t) h_{t-1} + z_t h̃_t ≈ h_{t-1} + δ e^{ε w·x_t} η a·x_t

sums the products: copies at ±ε differ by 2δεη Σ_s (w·x_s)(a·x_s), up to a part δ·T that leaks away (δ = 2⁻⁶⁰ by
default) and ε² that further copies cancel. A key-value memory is such a sum as it stands. A product of this moment is
the difference of such a sum and its value a step ago, which a neuron with z = 1 holds: its candidate reads h_{t-1}.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from underhood.cells import GRU, GatedRNN, Linear, Stack
from underhood.cells.gru import CANDIDATE, RESET, UPDATE
from underhood.construct.envelope import Envelope, Rounding, positive, power_of_two
from underhood.construct.forms import KeyValueForm
from underhood.construct.linearise import Linearisation, best_scale, central_coefficients, exponential
from underhood.construct.lowered import Lowered
from underhood.construct.products import Copies, copy_products, gated_products
from underhood.errors import NotConstructible

OPEN = 1000.0  # σ is exactly 1: the reset gate always, the update gate where a neuron keeps nothing
LEAK = {np.dtype(np.float64): 2.0**-60, np.dtype(np.float32): 2.0**-36}  # δ


@dataclasses.dataclass
class _Layer:
    """A GRU under construction; neurons are added in blocks, and read what was added before them."""

    inputs: int
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = dataclasses.field(
        default_factory=list
    )

    @property
    def size(self) -> int:
        return sum(len(block[3]) for block in self.blocks)

    def add(
        self,
        *,
        value: np.ndarray,
        recurrent: np.ndarray | None = None,
        gate: np.ndarray | None = None,
        gate_recurrent: np.ndarray | None = None,
        gate_bias: float = OPEN,
    ) -> slice:
        """h̃ = tanh(value·x + recurrent·h), z = σ(gate·x + gate_recurrent·h + bias); shorter rows are padded."""
        count, start = len(value), self.size
        none = np.zeros((count, 0))
        self.blocks.append(
            (
                value,
                none if recurrent is None else recurrent,
                np.zeros((count, self.inputs)) if gate is None else gate,
                np.full(count, gate_bias),
                none if gate_recurrent is None else gate_recurrent,
            )
        )
        return slice(start, start + count)

    def build(self) -> GRU:
        n = self.size
        u, v, b = np.zeros((3, n, self.inputs)), np.zeros((3, n, n)), np.zeros((3, n))
        b[RESET], row = OPEN, 0
        for value, recurrent, gate, bias, gate_recurrent in self.blocks:
            rows = slice(row, row + len(bias))
            u[CANDIDATE, rows], u[UPDATE, rows], b[UPDATE, rows] = value, gate, bias
            v[CANDIDATE, rows, : recurrent.shape[1]] = recurrent
            v[UPDATE, rows, : gate_recurrent.shape[1]] = gate_recurrent
            row = rows.stop
        return GRU(u, v, b)


def to_gru(source: GatedRNN, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """Two layers: input gating and perfect memories in the first, other recurrence and output gating in the second."""
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = math.log(leak) - math.log1p(-leak)
    whole = gated_products(source, envelope)
    steps, worst = float(envelope.horizon), envelope.worst.around(bias)

    before, after = (
        _balance(order, leak, envelope.typical.around(bias), error) for error in (_summed_error, _difference_error)
    )
    products, lambda_, n = whole.inputs, whole.lambda_, len(whole.lambda_)

    # First layer. Its outputs, and H_t = from_first @ outputs + from_second @ (second layer's h_{t-1}).
    first = _Layer(whole.d + 1)
    copies = _drop(copy_products(products, before), products.linear)
    small = power_of_two(envelope.tiny / positive(products.value_bounds))
    sums = first.add(value=copies.values * small[copies.owner, None], gate=copies.gates, gate_bias=bias)
    combine = copies.combine / small[copies.owner]  # row n: Σ_s (products of n)
    # Linear inputs need no gate: z = 1 and h̃ = λ h_{t-1} + η value.
    linear = np.flatnonzero(products.linear)
    span = positive(products.bounds * envelope.steps(lambda_))
    small_linear = power_of_two(envelope.tiny / span)[linear]
    carried = products.values[linear] * (products.constants[linear] * small_linear)[:, None]
    lines = first.add(
        value=carried,
        recurrent=np.hstack([np.zeros((len(linear), sums.stop)), np.diag(lambda_[linear])]),
    )
    # Products that are not summed with λ = 1: what the sum was a step ago, to take the difference.
    passing = np.flatnonzero(~products.linear & (lambda_ != 1))
    small_late = power_of_two(envelope.tiny / positive(products.bounds * steps))[passing]
    late = first.add(value=np.zeros((len(passing), whole.d + 1)), recurrent=combine[passing] * small_late[:, None])
    from_first = np.zeros((n, first.size))
    from_first[:, sums] = combine
    from_first[linear, np.arange(lines.start, lines.stop)] = 1 / small_linear
    from_first[passing, np.arange(late.start, late.stop)] = -1 / small_late

    # Second layer: H of neurons with 0 < λ < 1, then the output gating and its sums a step ago.
    second = _Layer(first.size)
    decaying = passing[(lambda_[passing] > 0)]
    small_state = power_of_two(envelope.tiny / positive(whole.state_bounds))[decaying]
    held = second.add(value=from_first[decaying] * small_state[:, None], recurrent=np.diag(lambda_[decaying]))
    from_second = np.zeros((n, held.stop))
    from_second[decaying, np.arange(held.stop)] = lambda_[decaying] / small_state
    outputs = copy_products(whole.outputs, after)
    small_out = power_of_two(envelope.tiny / positive(whole.outputs.value_bounds))[outputs.owner]
    made = second.add(
        value=outputs.values @ from_first * small_out[:, None],
        recurrent=outputs.values @ from_second * small_out[:, None],
        gate=outputs.gates @ from_first,
        gate_recurrent=outputs.gates @ from_second,
        gate_bias=bias,
    )
    weights = whole.readout @ (outputs.combine / small_out)
    readout = _difference(second, made, weights, whole.output_bounds * steps, envelope)
    leaked = leak * steps * math.exp(order * max(before.scale, after.scale))
    relative = (
        _summed_error(before, worst) + _difference_error(after, worst) + 2 * leaked + envelope.tiny**2 + envelope.dot(n)
    )
    if len(passing):  # their difference is taken a layer earlier
        relative += _difference_error(before, worst)
    embedding = Linear(np.eye(whole.d + 1, whole.d), np.append(np.zeros(whole.d), 1.0))
    model = Stack(embedding, (first.build(), second.build()), Linear(readout, np.zeros(len(readout))))
    return Lowered(model, relative, whole.output_bounds)


def attention_to_gru(form: KeyValueForm, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """One layer. y_t = Σ_{s<t} v_s (k_s·q_t) + v_t (k_t·q_t): the past through a gate that reads q_t and a candidate
    that reads the memories a step ago; the present, a cubic of x_t, through the second difference in ε,
    e^{ε w·x} + e^{−ε w·x} − 2 ≈ ε² (w·x)², and 4ab = (a+b)² − (a−b)².
    """
    if np.any(form.decay != 1):
        reason = "sums behind a gate that is nearly shut do not decay"
        raise NotConstructible("gru", layers=1, needs=2, reason=reason, source="docs/theory.md")
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = math.log(leak) - math.log1p(-leak)
    steps, worst = float(envelope.horizon), envelope.worst.around(bias)
    asked = form.asks @ form.queries
    key_bounds, value_bounds, query_bounds = map(envelope.linear, (form.keys, form.values, asked))

    def error_cubic(scheme: Linearisation, rounding: Rounding) -> float:
        # One step's share, 1/T, of the largest output; its second difference amplifies rounding by 1/ε².
        return scheme.truncation / steps + rounding.step * 4 * rounding.grown(scheme) / scheme.scale

    before, after, cubic = (
        _balance(order, leak, envelope.typical.around(bias), error)
        for error in (_summed_error, _difference_error, error_cubic)
    )
    layer = _Layer(form.d)
    # Memories: Σ_s (v·x_s)(k·x_s), in copies.
    memory, copy = (axis.ravel() for axis in np.indices((form.memory, before.copies)))
    small = power_of_two(envelope.tiny / positive(value_bounds))[memory]
    key_scale = positive(key_bounds)[memory]
    layer.add(
        value=form.values[memory] * small[:, None],
        gate=form.keys[memory] * (before.nodes[copy] / key_scale)[:, None],
        gate_bias=bias,
    )
    states = np.zeros((form.memory, len(memory)))
    states[memory, np.arange(len(memory))] = before.weights[copy] * key_scale / small
    # The past: gate q_t, candidate (A H_{t-1}).
    row, copy = (axis.ravel() for axis in np.indices((form.products, after.copies)))
    read_bounds = np.abs(form.reads) @ (key_bounds * value_bounds * envelope.steps(form.decay))
    small = power_of_two(envelope.tiny / positive(read_bounds))[row]
    query_scale = positive(query_bounds)[row]
    past = layer.add(
        value=np.zeros((len(row), form.d)),
        recurrent=form.reads[row] @ states * small[:, None],
        gate=asked[row] * (after.nodes[copy] / query_scale)[:, None],
        gate_bias=bias,
    )
    past_weights = form.readout[:, row] * (after.weights[copy] * query_scale / small)[None]
    # The present: for each product and memory it reads, gates (k/k̄ ± v/v̄)/2 and candidate q.
    pairs = np.nonzero(form.reads)
    pair, sign, copy = (axis.ravel() for axis in np.indices((len(pairs[0]), 2, cubic.copies)))
    row, memory = pairs[0][pair], pairs[1][pair]
    key_scale, value_scale = positive(key_bounds)[memory, None], positive(value_bounds)[memory, None]
    form_w = (form.keys[memory] / key_scale + np.array([1, -1])[sign, None] * form.values[memory] / value_scale) / 2
    small = power_of_two(envelope.tiny / positive(query_bounds))[row]
    present = layer.add(value=asked[row] * small[:, None], gate=form_w * cubic.nodes[copy][:, None], gate_bias=bias)
    # (a+b)²/4 − (a−b)²/4 = ab for a = k·x/k̄, b = v·x/v̄: the copies' part that no ε multiplies cancels, too.
    second = _second_difference(order, cubic.scale, leak)[copy]
    scale = (key_scale * value_scale)[:, 0] * np.array([1, -1])[sign] * form.reads[row, memory] / small
    present_weights = form.readout[:, row] * (second * scale)[None]
    made = slice(past.start, present.stop)
    weights = np.hstack([past_weights, present_weights])
    output_bounds = np.abs(form.readout) @ (read_bounds * query_bounds)
    readout = _difference(layer, made, weights, output_bounds * steps, envelope)
    leaked = leak * steps * math.exp(order * max(before.scale, after.scale, cubic.scale))
    relative = (
        _summed_error(before, worst)
        + _difference_error(after, worst)
        + error_cubic(cubic, worst)
        + 3 * leaked
        + envelope.tiny**2
    )
    model = Stack(Linear(np.eye(form.d), np.zeros(form.d)), (layer.build(),), Linear(readout, np.zeros(len(readout))))
    return Lowered(model, relative + envelope.dot(form.products), output_bounds)


def _summed_error(scheme: Linearisation, rounding: Rounding) -> float:
    """Of memories: the copies are summed over time, and then their difference is taken."""
    return scheme.truncation + (rounding.summing + rounding.step) * rounding.grown(scheme)


def _difference_error(scheme: Linearisation, rounding: Rounding) -> float:
    """Of products of the moment: the last step of a sum that is T/2 times as large as its largest step."""
    return scheme.truncation + (rounding.step + rounding.unit * rounding.steps / 2) * rounding.grown(scheme)


def _balance(
    order: int, leak: float, rounding: Rounding, error: Callable[[Linearisation, Rounding], float]
) -> Linearisation:
    return best_scale(lambda scale: exponential(order, scale, leak), lambda scheme: error(scheme, rounding))


def _second_difference(order: int, scale: float, gate: float) -> np.ndarray:
    """Weights of the copies at k ε and −k ε in (w·x)² ≈ Σ_k e_k (gate(k) + gate(−k) − 2 gate(0)), e_k = c_k/k."""
    half = np.array([float(c) / k for k, c in enumerate(central_coefficients(order), 1)]) / (scale**2 * gate)
    return np.concatenate([half, half])


def _drop(copies: Copies, linear: np.ndarray) -> Copies:
    """The copies of products that need a gate."""
    kept = ~linear[copies.owner]
    return Copies(copies.gates[kept], copies.values[kept], copies.combine[:, kept], copies.owner[kept])


def _difference(
    layer: _Layer, made: slice, weights: np.ndarray, sum_bounds: np.ndarray, envelope: Envelope
) -> np.ndarray:
    """The readout Σ weights (h_t − h_{t-1}) of the neurons `made`: one neuron an output holds the sum a step ago."""
    small = power_of_two(envelope.tiny / positive(sum_bounds))
    recurrent = np.zeros((len(weights), layer.size))
    recurrent[:, made] = weights * small[:, None]
    late = layer.add(value=np.zeros((len(weights), layer.inputs)), recurrent=recurrent)
    readout = np.zeros((len(weights), layer.size))
    readout[:, made] = weights
    readout[np.arange(len(weights)), np.arange(late.start, late.stop)] = -1 / small
    return readout
