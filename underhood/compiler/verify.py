"""Every compile is measured: the network against its source on probe sequences up to the horizon."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.forms import heads_of
from underhood.compiler.settings import SETTINGS
from underhood.compiler.targets import ATTENTION, GATED, Source, source_kind
from underhood.layers.linear import dense


@dataclasses.dataclass(frozen=True)
class Measured:
    """Errors over all probes; relative means against the largest output of probes of the same sort."""

    max_abs_error: float
    max_rel_error: float
    steps: int
    probes: int


def measure(source: Source, model: Any, envelope: Envelope, seed: int = 0) -> Measured:
    """Run both on every probe, the source in extended precision: in float64 it would round as the network does."""
    worst, relative, count = 0.0, 0.0, 0
    remembered = max(1, model.hidden, _states(source))
    length = min(envelope.horizon, SETTINGS.longest_probe, 1 + SETTINGS.most_states // remembered)
    for sequences in probes(source, envelope, length, seed):
        expected = [extended(source, xs) for xs in sequences]
        errors = [np.max(np.abs(np.asarray(model(xs)) - ys)) for xs, ys in zip(sequences, expected, strict=True)]
        error, largest = float(np.max(errors)), float(np.max([np.max(np.abs(ys)) for ys in expected]))
        if not np.isfinite(error):
            error = np.inf
        worst, count = max(worst, error), count + len(sequences)
        relative = max(relative, error / largest if largest > 0 else (0.0 if error == 0 else np.inf))
    return Measured(worst, relative, length, count)


def _states(source: Source) -> int:
    """Numbers that the source remembers."""
    if isinstance(source, LinearAttention):
        return source.heads * source.d_out * source.w_key.shape[1]
    return source.hidden


def probes(source: Source, envelope: Envelope, length: int, seed: int = 0) -> list[list[Float[np.ndarray, "t d"]]]:
    """Two sorts: inputs that vary, inside and at the corners; and the constant corners that drive outputs furthest.

    The latter are the hardest: signals reach their bounds, and every step rounds the same way. One of them is a little
    inside, since a corner is a round number, which networks that read x itself would sum without rounding. One turns
    its sign at every step: key-values stay as they are, and queries move as far as they can.
    """
    random, r = np.random.default_rng(seed), envelope.input_bound
    shape, varied = (length, source.d), []
    for _ in range(max(1, 64 // length)):  # short sequences say little each
        varied += [random.uniform(-r, r, shape), np.clip(random.normal(size=shape), -r, r)]
        varied.append(r * random.choice([-1.0, 1.0], shape))
    corners = _furthest_corners(source, envelope, random)
    corners.append(corners[0] * random.uniform(0.9, 1.0, source.d))
    turning = (-1.0) ** np.arange(length)[:, None]
    return [varied, [*(np.tile(corner, (length, 1)) for corner in corners), corners[0] * turning]]


def extended(source: Source, xs: Float[np.ndarray, "t d"]) -> np.ndarray:
    """The source's outputs in NumPy's longest float."""
    of_kind = {ATTENTION: _extended_attention, GATED: _extended_gated}
    return of_kind[source_kind(source)](source, xs.astype(np.longdouble))


def _extended_attention(source: LinearAttention, xs: np.ndarray) -> np.ndarray:
    ys = np.zeros((len(xs), source.d_out), np.longdouble)
    for *weights, decay in heads_of(source):
        values, keys, queries = (xs @ weight.astype(np.longdouble).T for weight in weights)
        memory = np.zeros((values.shape[1], keys.shape[1]), np.longdouble)
        for t in range(len(xs)):
            memory = decay * memory + np.multiply.outer(values[t], keys[t])
            ys[t] += memory @ queries[t]
    return ys


def _extended_gated(source: GatedRNN, xs: np.ndarray) -> np.ndarray:
    gate_in, gate_out = source.input_gating, source.output_gating
    w_in_m, w_in_x, w_out_m, w_out_x, readout = (
        dense(matrix).astype(np.longdouble)
        for matrix in (gate_in.w_m, gate_in.w_x, gate_out.w_m, gate_out.w_x, source.readout)
    )
    with_one = np.hstack([xs, np.ones((len(xs), 1), np.longdouble)])
    inputs = (with_one @ w_in_m.T) * (with_one @ w_in_x.T)
    lambda_, state = np.asarray(source.lambda_).astype(np.longdouble), np.zeros(len(w_in_m), np.longdouble)
    ys = np.zeros((len(xs), len(readout)), np.longdouble)
    for t in range(len(xs)):
        state = lambda_ * state + inputs[t]
        ys[t] = readout @ ((w_out_m @ state) * (w_out_x @ state))
    return ys


def _furthest_corners(source: Source, envelope: Envelope, random: np.random.Generator) -> list[np.ndarray]:
    """Constant inputs ±r that make some output large: ascent by flips of signs, from several starts.

    One flip at a time; among many inputs, the flips that gain most all at once, in halves until they gain together.
    """
    few = source.d <= SETTINGS.few_inputs
    starts = envelope.input_bound * random.choice([-1.0, 1.0], (8 if few else 2, source.d))
    reached = []
    for corner in starts:
        size = _size_for_constant(source, corner[None], envelope)[0]
        while True:
            flipped = np.tile(corner, (source.d, 1))
            np.fill_diagonal(flipped, -corner)
            sizes = _size_for_constant(source, flipped, envelope)
            order = np.argsort(-sizes, kind="stable")
            if not sizes[order[0]] > size:
                break
            best, most = (sizes[order[0]], flipped[order[0]]), 1 if few else int(np.sum(sizes > size))
            while most > 1:
                together = corner.copy()
                together[order[:most]] *= -1
                size_together = _size_for_constant(source, together[None], envelope)[0]
                best, most = max(best, (size_together, together), key=lambda pair: pair[0]), most // 2
            size, corner = best
        reached.append((float(size), corner))
    reached.sort(key=lambda pair: -pair[0])
    return [corner for _, corner in reached[:2]]


def _size_for_constant(source: Source, xs: Float[np.ndarray, "b d"], envelope: Envelope) -> Float[np.ndarray, " b"]:
    """The largest output after a horizon of one and the same input."""
    of_kind = {ATTENTION: _attention_constant, GATED: _gated_constant}
    return np.max(np.abs(of_kind[source_kind(source)](source, xs, envelope)), axis=1)


def _attention_constant(source: LinearAttention, xs: np.ndarray, envelope: Envelope) -> np.ndarray:
    outputs = np.zeros((len(xs), source.d_out))
    for w_value, w_key, w_query, decay in heads_of(source):
        scores = np.sum((xs @ w_key.T) * (xs @ w_query.T), axis=1, keepdims=True)
        outputs += envelope.steps(decay) * scores * (xs @ w_value.T)
    return outputs


def _gated_constant(source: GatedRNN, xs: np.ndarray, envelope: Envelope) -> np.ndarray:
    with_one = np.hstack([xs, np.ones((len(xs), 1))])
    gate_in, gate_out = source.input_gating, source.output_gating
    inputs = (with_one @ dense(gate_in.w_m).T) * (with_one @ dense(gate_in.w_x).T)
    states = inputs * envelope.steps(np.asarray(source.lambda_))[None]
    return ((states @ dense(gate_out.w_m).T) * (states @ dense(gate_out.w_x).T)) @ dense(source.readout).T
