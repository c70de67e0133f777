"""Attention → GRU in one layer: y_t = Σ_{s<t} v_s (k_s·q_t) + v_t (k_t·q_t).

The past goes through a gate that reads q_t and a candidate that reads the memories a step ago; the present, a cubic of
x_t, through the second difference in ε, e^{ε w·x} + e^{−ε w·x} − 2 ≈ ε² (w·x)², and 4ab = (a+b)² − (a−b)².
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import KeyValueForm
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
from underhood.compiler.envelope import Envelope, Typical, positive, power_of_two
from underhood.compiler.linearise import Linearisation, central_coefficients
from underhood.compiler.products import Products, combined, local
from underhood.compiler.rounding import WEIGHT, Arithmetic, Signal, join
from underhood.compiler.targets import Lowered
from underhood.core.errors import NotConstructible
from underhood.layers.linear import Linear

NO_DECAY = "sums behind a gate that is nearly shut do not decay"


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The layer under construction, and the largest |k·x|, |v·x|, |q·x| and |(A H)_j| of the form that it holds."""

    layer: Layer
    form: KeyValueForm
    envelope: Envelope
    bias: float
    leak: float

    @functools.cached_property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(self.envelope)

    @functools.cached_property
    def x(self) -> Signal:
        return self.arithmetic.inputs(self.form.d)

    def summed(self, gates: np.ndarray, largest: float, candidates: Signal) -> tuple[Signal, Signal]:
        """What the neurons add in a step, and by the horizon."""
        gate = self.arithmetic.linear(gates, local(self.x)).known(np.full(len(gates), 2 * largest))
        return summed(self.arithmetic, gate, candidates, self.bias, self.leak)

    @functools.cached_property
    def asked(self) -> Float[np.ndarray, "products d"]:
        return self.form.asks @ self.form.queries

    @functools.cached_property
    def keys(self) -> Float[np.ndarray, " memory"]:
        return self.envelope.linear(self.form.keys)

    @functools.cached_property
    def values(self) -> Float[np.ndarray, " memory"]:
        return self.envelope.linear(self.form.values)

    @functools.cached_property
    def queries(self) -> Float[np.ndarray, " products"]:
        return self.envelope.linear(self.asked)

    @functools.cached_property
    def reads(self) -> Float[np.ndarray, " products"]:
        return np.abs(self.form.reads) @ (self.keys * self.values * self.envelope.steps(self.form.decay))


def attention_to_gru(form: KeyValueForm, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """One layer: memories, the past through them, the present beside them, and last step's sum to take away."""
    if np.any(form.decay != 1):
        raise NotConstructible("gru", layers=1, needs=2, reason=NO_DECAY, source="docs/theory.md")
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias, steps = bias_of(leak), float(envelope.horizon)
    plan = _Plan(Layer(form.d), form, envelope, bias, leak)

    def error_cubic(scheme: Linearisation, rounding: Typical) -> float:
        # One step's share, 1/T, of the largest output; its second difference amplifies rounding by 1/ε².
        return scheme.truncation / steps + rounding.step * 4 * scheme.noise / scheme.scale

    errors = (summed_error, difference_error, error_cubic)
    before, after, cubic = (balance(order, leak, envelope.typical.around(bias), error) for error in errors)
    states, memory, wrong = _memories(plan, before)
    past = _past(plan, after, states, memory, wrong)
    present = _present(plan, cubic, order)
    output_bounds = np.abs(form.readout) @ (plan.reads * plan.queries)
    made, weights = slice(past.where.start, present.where.stop), np.hstack([past.weights, present.weights])
    readout = difference(plan.layer, made, weights, output_bounds * steps, envelope)
    model = Stack(
        Linear(np.eye(form.d), np.zeros(form.d)), (plan.layer.build(),), Linear(readout, np.zeros(len(readout)))
    )
    rounded = last_step(plan.arithmetic, weights, join(past.made, present.made), join(past.total, present.total))
    return Lowered(model, rounded + past.left + present.left, output_bounds)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Neurons whose last step is a part of the output: where they are, how to combine them, and what is wrong."""

    where: slice
    weights: Float[np.ndarray, "d_o n"]
    made: Signal
    total: Signal
    left: Float[np.ndarray, " d_o"]
    """Of the limit, and of what all copies share."""


def _memories(plan: _Plan, scheme: Linearisation) -> tuple[Float[np.ndarray, "memory n"], Signal, Signal]:
    """Σ_s (v·x_s)(k·x_s), in copies: how to combine them, the copies, and the sums with their errors."""
    form, steps = plan.form, float(plan.envelope.horizon)
    memory, copy = (axis.ravel() for axis in np.indices((form.memory, scheme.copies)))
    small = power_of_two(plan.envelope.tiny / positive(plan.values))[memory]
    key_scale = positive(plan.keys)[memory]
    value, gate = form.values[memory] * small[:, None], form.keys[memory] * (scheme.nodes[copy] / key_scale)[:, None]
    plan.layer.add(value=value, gate=gate, gate_bias=plan.bias)
    states = np.zeros((form.memory, len(memory)))
    states[memory, np.arange(len(memory))] = scheme.weights[copy] * key_scale / small
    candidates = plan.arithmetic.linear(value, local(plan.x))
    _, total = plan.summed(gate, scheme.order * scheme.scale, candidates)
    products = _products(form.keys, form.values, plan.keys, plan.values)
    shared = (np.abs(rows) @ plan.x.error for rows in (form.keys, form.values))
    leaking = scheme.leaking(plan.leak, steps)
    return states, total, combined(plan.arithmetic, products, leaking, total, states, *shared, steps=steps)


def _past(
    plan: _Plan, scheme: Linearisation, states: Float[np.ndarray, "memory n"], memory: Signal, wrong: Signal
) -> _Part:
    """Gate q_t, candidate (A H_{t-1}), which grows as t does: all steps together are T/2 of the last."""
    form, arithmetic, steps = plan.form, plan.arithmetic, float(plan.envelope.horizon)
    row, copy = (axis.ravel() for axis in np.indices((form.products, scheme.copies)))
    small = power_of_two(plan.envelope.tiny / positive(plan.reads))[row]
    query_scale = positive(plan.queries)[row]
    recurrent = form.reads[row] @ states * small[:, None]
    gate = plan.asked[row] * (scheme.nodes[copy] / query_scale)[:, None]
    where = plan.layer.add(value=np.zeros((len(row), form.d)), recurrent=recurrent, gate=gate, gate_bias=plan.bias)
    weights = form.readout[:, row] * (scheme.weights[copy] * query_scale / small)
    value_error = np.abs(form.reads) @ wrong.error
    candidates = arithmetic.linear(recurrent, local(memory), (plan.reads + value_error)[row] * small)
    made, total = plan.summed(gate, scheme.order * scheme.scale, candidates)
    total = Signal(total.size * (steps + 1) / (2 * steps), total.error)
    products = _products(plan.asked, form.reads, plan.queries, plan.reads)
    gate_error, nothing = np.abs(plan.asked) @ plan.x.error, Signal(np.zeros(len(row)), np.zeros(len(row)))
    leaking = scheme.leaking(plan.leak, steps)
    left = combined(arithmetic, products, leaking, nothing, 0 * weights, gate_error, value_error, form.readout)
    return _Part(where, weights, made, total, left.error)


def _present(plan: _Plan, scheme: Linearisation, order: int) -> _Part:
    """For each product and each memory it reads, gates (k/k̄ ± v/v̄)/2 and candidate q.

    (a+b)²/4 − (a−b)²/4 = ab for a = k·x/k̄, b = v·x/v̄: the copies' part that no ε multiplies cancels, too.
    """
    form, arithmetic, steps = plan.form, plan.arithmetic, float(plan.envelope.horizon)
    second = _second_difference(order, scheme.scale, plan.leak)
    rows, memories = np.nonzero(form.reads)
    pair, sign, copy = (axis.ravel() for axis in np.indices((len(rows), 2, scheme.copies)))
    row, memory, sign = rows[pair], memories[pair], np.array([1, -1])[sign]
    key_scale, value_scale = positive(plan.keys)[memory], positive(plan.values)[memory]
    keys, values = form.keys[memory] / key_scale[:, None], form.values[memory] / value_scale[:, None]
    small = power_of_two(plan.envelope.tiny / positive(plan.queries))[row]
    value = plan.asked[row] * small[:, None]
    gate = (keys + sign[:, None] * values) / 2 * scheme.nodes[copy][:, None]
    where = plan.layer.add(value=value, gate=gate, gate_bias=plan.bias)
    scale = key_scale * value_scale * sign * form.reads[row, memory] / small
    weights = form.readout[:, row] * (second[copy] * scale)
    made, total = plan.summed(gate, order * scheme.scale, arithmetic.linear(value, local(plan.x)))
    # cosh, whose series has smaller terms than the scheme's sinh; what the gate bends, and leaks; and x itself.
    largest = np.exp(2 * order * scheme.scale) * plan.leak
    bent = 2 * float(np.abs(second).sum()) * plan.leak * largest * np.expm1(order * scheme.scale)
    relative = scheme.truncation + bent + 16 * steps * largest + float(np.expm1(3 * arithmetic.cast))
    sizes = (plan.keys * plan.values)[memories] * np.abs(form.reads[rows, memories]) * plan.queries[rows]
    left = np.abs(form.readout[:, rows]) @ sizes * relative
    return _Part(where, weights, made, total, left + arithmetic.gamma(WEIGHT) * np.abs(form.readout[:, rows]) @ sizes)


def _products(gates: np.ndarray, values: np.ndarray, gate_bounds: np.ndarray, value_bounds: np.ndarray) -> Products:
    return Products(
        gates, values, positive(gate_bounds), value_bounds, np.zeros(len(gates), bool), np.zeros(len(gates))
    )


def _second_difference(order: int, scale: float, gate: float) -> Float[np.ndarray, " copies"]:
    """Weights of the copies at k ε and −k ε in (w·x)² ≈ Σ_k e_k (gate(k) + gate(−k) − 2 gate(0)), e_k = c_k/k."""
    half = np.array([float(c) / k for k, c in enumerate(central_coefficients(order), 1)]) / (scale**2 * gate)
    return np.concatenate([half, half])
