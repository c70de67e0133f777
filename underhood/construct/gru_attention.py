"""Attention → GRU in one layer: y_t = Σ_{s<t} v_s (k_s·q_t) + v_t (k_t·q_t).

The past goes through a gate that reads q_t and a candidate that reads the memories a step ago; the present, a cubic of
x_t, through the second difference in ε, e^{ε w·x} + e^{−ε w·x} − 2 ≈ ε² (w·x)², and 4ab = (a+b)² − (a−b)².
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import KeyValueForm
from underhood.cells import Linear, Stack
from underhood.construct.envelope import Envelope, Rounding, positive, power_of_two
from underhood.construct.gru_layer import LEAK, Layer, balance, bias_of, difference, difference_error, summed_error
from underhood.construct.linearise import Linearisation, central_coefficients
from underhood.construct.lowered import Lowered
from underhood.errors import NotConstructible


@dataclasses.dataclass(frozen=True)
class _Bounds:
    """The largest |k·x|, |v·x|, |q·x| and |(A H)_j| of the form."""

    keys: Float[np.ndarray, " memory"]
    values: Float[np.ndarray, " memory"]
    queries: Float[np.ndarray, " products"]
    reads: Float[np.ndarray, " products"]


def attention_to_gru(form: KeyValueForm, envelope: Envelope, order: int, leak: float | None = None) -> Lowered:
    """One layer: memories, the past through them, the present beside them, and last step's sum to take away."""
    if np.any(form.decay != 1):
        reason = "sums behind a gate that is nearly shut do not decay"
        raise NotConstructible("gru", layers=1, needs=2, reason=reason, source="docs/theory.md")
    leak = LEAK[envelope.dtype] if leak is None else leak
    bias = bias_of(leak)
    steps, worst = float(envelope.horizon), envelope.worst.around(bias)
    asked = form.asks @ form.queries
    keys, values, queries = map(envelope.linear, (form.keys, form.values, asked))
    bounds = _Bounds(keys, values, queries, np.abs(form.reads) @ (keys * values * envelope.steps(form.decay)))

    def error_cubic(scheme: Linearisation, rounding: Rounding) -> float:
        # One step's share, 1/T, of the largest output; its second difference amplifies rounding by 1/ε².
        return scheme.truncation / steps + rounding.step * 4 * rounding.grown(scheme) / scheme.scale

    errors = (summed_error, difference_error, error_cubic)
    schemes = [balance(order, leak, envelope.typical.around(bias), error) for error in errors]
    before, after, cubic = schemes
    layer = Layer(form.d)
    states = _memories(layer, form, bounds, before, envelope, bias)
    past, past_weights = _past(layer, form, bounds, after, envelope, bias, states)
    second = _second_difference(order, cubic.scale, leak)
    present, present_weights = _present(layer, form, bounds, cubic, envelope, bias, second)
    output_bounds = np.abs(form.readout) @ (bounds.reads * queries)
    made, weights = slice(past.start, present.stop), np.hstack([past_weights, present_weights])
    readout = difference(layer, made, weights, output_bounds * steps, envelope)
    relative = sum(error(scheme, worst) for error, scheme in zip(errors, schemes, strict=True))
    relative += 3 * leak * steps * math.exp(order * max(scheme.scale for scheme in schemes))
    relative += envelope.tiny**2 + envelope.dot(form.products)
    model = Stack(Linear(np.eye(form.d), np.zeros(form.d)), (layer.build(),), Linear(readout, np.zeros(len(readout))))
    return Lowered(model, relative, output_bounds)


def _memories(
    layer: Layer, form: KeyValueForm, bounds: _Bounds, scheme: Linearisation, envelope: Envelope, bias: float
) -> Float[np.ndarray, "memory n"]:
    """Σ_s (v·x_s)(k·x_s), in copies; how to combine them."""
    memory, copy = (axis.ravel() for axis in np.indices((form.memory, scheme.copies)))
    small = power_of_two(envelope.tiny / positive(bounds.values))[memory]
    key_scale = positive(bounds.keys)[memory]
    layer.add(
        value=form.values[memory] * small[:, None],
        gate=form.keys[memory] * (scheme.nodes[copy] / key_scale)[:, None],
        gate_bias=bias,
    )
    states = np.zeros((form.memory, len(memory)))
    states[memory, np.arange(len(memory))] = scheme.weights[copy] * key_scale / small
    return states


def _past(
    layer: Layer,
    form: KeyValueForm,
    bounds: _Bounds,
    scheme: Linearisation,
    envelope: Envelope,
    bias: float,
    states: Float[np.ndarray, "memory n"],
) -> tuple[slice, np.ndarray]:
    """Gate q_t, candidate (A H_{t-1})."""
    row, copy = (axis.ravel() for axis in np.indices((form.products, scheme.copies)))
    small = power_of_two(envelope.tiny / positive(bounds.reads))[row]
    query_scale = positive(bounds.queries)[row]
    made = layer.add(
        value=np.zeros((len(row), form.d)),
        recurrent=form.reads[row] @ states * small[:, None],
        gate=(form.asks @ form.queries)[row] * (scheme.nodes[copy] / query_scale)[:, None],
        gate_bias=bias,
    )
    return made, form.readout[:, row] * (scheme.weights[copy] * query_scale / small)


def _present(
    layer: Layer,
    form: KeyValueForm,
    bounds: _Bounds,
    scheme: Linearisation,
    envelope: Envelope,
    bias: float,
    second: Float[np.ndarray, " copies"],
) -> tuple[slice, np.ndarray]:
    """For each product and each memory it reads, gates (k/k̄ ± v/v̄)/2 and candidate q.

    (a+b)²/4 − (a−b)²/4 = ab for a = k·x/k̄, b = v·x/v̄: the copies' part that no ε multiplies cancels, too.
    """
    rows, memories = np.nonzero(form.reads)
    pair, sign, copy = (axis.ravel() for axis in np.indices((len(rows), 2, scheme.copies)))
    row, memory, sign = rows[pair], memories[pair], np.array([1, -1])[sign]
    key_scale, value_scale = positive(bounds.keys)[memory], positive(bounds.values)[memory]
    keys, values = form.keys[memory] / key_scale[:, None], form.values[memory] / value_scale[:, None]
    small = power_of_two(envelope.tiny / positive(bounds.queries))[row]
    made = layer.add(
        value=(form.asks @ form.queries)[row] * small[:, None],
        gate=(keys + sign[:, None] * values) / 2 * scheme.nodes[copy][:, None],
        gate_bias=bias,
    )
    scale = key_scale * value_scale * sign * form.reads[row, memory] / small
    return made, form.readout[:, row] * (second[copy] * scale)


def _second_difference(order: int, scale: float, gate: float) -> Float[np.ndarray, " copies"]:
    """Weights of the copies at k ε and −k ε in (w·x)² ≈ Σ_k e_k (gate(k) + gate(−k) − 2 gate(0)), e_k = c_k/k."""
    half = np.array([float(c) / k for k, c in enumerate(central_coefficients(order), 1)]) / (scale**2 * gate)
    return np.concatenate([half, half])
