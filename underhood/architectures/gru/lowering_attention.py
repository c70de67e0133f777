"""Attention → GRU in one layer: y_t = Σ_{s<t} v_s (k_s·q_t) + v_t (k_t·q_t).

The past goes through a gate that reads q_t and a candidate that reads the memories a step ago; the present, a cubic of
x_t, through the second difference in ε, e^{ε w·x} + e^{−ε w·x} − 2 ≈ ε² (w·x)², and 4ab = (a+b)² − (a−b)².
"""

from __future__ import annotations

import dataclasses
import functools
import math

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
    summed_error,
)
from underhood.architectures.stack.cell import Stack
from underhood.compiler.envelope import Envelope, Rounding, positive, power_of_two
from underhood.compiler.linearise import Linearisation, central_coefficients
from underhood.compiler.lowered import Lowered
from underhood.core.errors import NotConstructible
from underhood.layers.linear import Linear


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The layer under construction, and the largest |k·x|, |v·x|, |q·x| and |(A H)_j| of the form that it holds."""

    layer: Layer
    form: KeyValueForm
    envelope: Envelope
    bias: float

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
        reason = "sums behind a gate that is nearly shut do not decay"
        raise NotConstructible("gru", layers=1, needs=2, reason=reason, source="docs/theory.md")
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = bias_of(leak)
    steps, worst = float(envelope.horizon), envelope.worst.around(bias)
    plan = _Plan(Layer(form.d), form, envelope, bias)

    def error_cubic(scheme: Linearisation, rounding: Rounding) -> float:
        # One step's share, 1/T, of the largest output; its second difference amplifies rounding by 1/ε².
        return scheme.truncation / steps + rounding.step * 4 * rounding.grown(scheme) / scheme.scale

    errors = (summed_error, difference_error, error_cubic)
    schemes = [balance(order, leak, envelope.typical.around(bias), error) for error in errors]
    before, after, cubic = schemes
    states = _memories(plan, before)
    past, past_weights = _past(plan, after, states)
    present, present_weights = _present(plan, cubic, _second_difference(order, cubic.scale, leak))
    output_bounds = np.abs(form.readout) @ (plan.reads * plan.queries)
    made, weights = slice(past.start, present.stop), np.hstack([past_weights, present_weights])
    readout = difference(plan.layer, made, weights, output_bounds * steps, envelope)
    relative = sum(error(scheme, worst) for error, scheme in zip(errors, schemes, strict=True))
    relative += 3 * leak * steps * math.exp(order * max(scheme.scale for scheme in schemes))
    relative += envelope.tiny**2 + envelope.dot(form.products)
    model = Stack(
        Linear(np.eye(form.d), np.zeros(form.d)), (plan.layer.build(),), Linear(readout, np.zeros(len(readout)))
    )
    return Lowered(model, relative, output_bounds)


def _memories(plan: _Plan, scheme: Linearisation) -> Float[np.ndarray, "memory n"]:
    """Σ_s (v·x_s)(k·x_s), in copies; how to combine them."""
    form = plan.form
    memory, copy = (axis.ravel() for axis in np.indices((form.memory, scheme.copies)))
    small = power_of_two(plan.envelope.tiny / positive(plan.values))[memory]
    key_scale = positive(plan.keys)[memory]
    plan.layer.add(
        value=form.values[memory] * small[:, None],
        gate=form.keys[memory] * (scheme.nodes[copy] / key_scale)[:, None],
        gate_bias=plan.bias,
    )
    states = np.zeros((form.memory, len(memory)))
    states[memory, np.arange(len(memory))] = scheme.weights[copy] * key_scale / small
    return states


def _past(plan: _Plan, scheme: Linearisation, states: Float[np.ndarray, "memory n"]) -> tuple[slice, np.ndarray]:
    """Gate q_t, candidate (A H_{t-1})."""
    form = plan.form
    row, copy = (axis.ravel() for axis in np.indices((form.products, scheme.copies)))
    small = power_of_two(plan.envelope.tiny / positive(plan.reads))[row]
    query_scale = positive(plan.queries)[row]
    made = plan.layer.add(
        value=np.zeros((len(row), form.d)),
        recurrent=form.reads[row] @ states * small[:, None],
        gate=plan.asked[row] * (scheme.nodes[copy] / query_scale)[:, None],
        gate_bias=plan.bias,
    )
    return made, form.readout[:, row] * (scheme.weights[copy] * query_scale / small)


def _present(plan: _Plan, scheme: Linearisation, second: Float[np.ndarray, " copies"]) -> tuple[slice, np.ndarray]:
    """For each product and each memory it reads, gates (k/k̄ ± v/v̄)/2 and candidate q.

    (a+b)²/4 − (a−b)²/4 = ab for a = k·x/k̄, b = v·x/v̄: the copies' part that no ε multiplies cancels, too.
    """
    form = plan.form
    rows, memories = np.nonzero(form.reads)
    pair, sign, copy = (axis.ravel() for axis in np.indices((len(rows), 2, scheme.copies)))
    row, memory, sign = rows[pair], memories[pair], np.array([1, -1])[sign]
    key_scale, value_scale = positive(plan.keys)[memory], positive(plan.values)[memory]
    keys, values = form.keys[memory] / key_scale[:, None], form.values[memory] / value_scale[:, None]
    small = power_of_two(plan.envelope.tiny / positive(plan.queries))[row]
    made = plan.layer.add(
        value=plan.asked[row] * small[:, None],
        gate=(keys + sign[:, None] * values) / 2 * scheme.nodes[copy][:, None],
        gate_bias=plan.bias,
    )
    scale = key_scale * value_scale * sign * form.reads[row, memory] / small
    return made, form.readout[:, row] * (second[copy] * scale)


def _second_difference(order: int, scale: float, gate: float) -> Float[np.ndarray, " copies"]:
    """Weights of the copies at k ε and −k ε in (w·x)² ≈ Σ_k e_k (gate(k) + gate(−k) − 2 gate(0)), e_k = c_k/k."""
    half = np.array([float(c) / k for k, c in enumerate(central_coefficients(order), 1)]) / (scale**2 * gate)
    return np.concatenate([half, half])
