"""Attention → a matrix memory in one layer, gated RNN → two, through layers that were not made for it.

A matrix memory is attention, S_t = γ S_{t-1} + k vᵀ, o = Sᵀ q; what stands in the way are the activations and the norms
around it. All of them are linear for small signals, and scales are free in floating point:

    SiLU(x) = x/2 (1 + x/2 − …)                  x/√(Σ x² + ε) = x/√ε (1 − Σ x²/2ε + …),  likewise RMS and layer norm

At |x| ≤ u/8, u the unit of rounding, nothing but rounding is left. So a head needs the d_k·d_v numbers of its own
memory and no more; a norm that subtracts the mean takes one column of values, −Σ v.

A gated RNN has h = λ h + (a·x)(b·x) in the first layer, memories of size 1 with the constant 1 as their query, and
(A h)(B h) in the second, as memories that forget at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.heads import Heads, Made, blocks, singles, state_products, states
from underhood.compiler.settings import SETTINGS
from underhood.compiler.targets import Lowered, Way, register_target
from underhood.layers.linear import Linear

ONE = 64.0  # SiLU and softplus hand it on unchanged, in float32 and float64
REACHED = {1: 1e-12}  # a limit, and yet within rounding

Make = Callable[[Heads, int, Envelope], Made]
"""(heads, width, envelope) → a layer from `width` numbers, x̃ first, to as many, y first."""


def register_memory(name: str, make: Make) -> None:
    """A target whose layers `make` builds: one for attention, two for a gated RNN."""
    register_target(
        name,
        attention={1: Way(functools.partial(lower_attention, make))},
        gated={2: Way(functools.partial(lower_gated, make))},
        tolerances=REACHED,
        why_not_fewer="no construction with one layer is known: queries are made from the input, so a product of two "
        "states takes a second one",
        source="docs/theory.md",
        paper=(None, None),
    )


def lower_attention(make: Make, source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """One layer, with the heads of the source or with their products as heads, whichever takes fewer numbers.

    Products save half of the memory at best, and have rows of their own in every projection: d times the weights of the
    heads. They are looked at while these are few.
    """
    width = max(source.d + 1, source.d_out)
    products = source.heads * min(source.d, source.d_out) * min(source.w_key.shape[1:])
    own = singles(source, envelope) if products * width <= SETTINGS.most_rows else None
    choices = (make(heads, width, envelope) for heads in (blocks(source, envelope), own) if heads is not None)
    made = min(choices, key=lambda choice: choice.layer.hidden)
    heads = made.heads
    return Lowered(_stack((made.layer,), source), heads.errors(made, envelope), heads.joint_bounds)


def lower_gated(make: Make, source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: the states with the constant, and the products of two, whose query is the constant."""
    first, second = states(source, envelope), state_products(source, envelope)
    width = max(source.d + 1, source.hidden + 1, source.d_out)
    below, above = (make(heads, width, envelope) for heads in (first, second))
    relative = np.expm1(3 * below.heads.rounding(below, envelope))
    errors = above.heads.errors(above, envelope) * (1 + relative) + relative * above.heads.output_bounds
    return Lowered(_stack((below.layer, above.layer), source), errors, second.output_bounds)


def _stack(layers: tuple[Any, ...], source: LinearAttention | GatedRNN) -> Stack:
    """Embedding (x, 1, 0 …), the layers, and the first of their outputs."""
    width, d, d_out = layers[0].d, source.d, source.d_out
    readout = Linear(np.eye(d_out, width), np.zeros(d_out))
    return Stack(Linear(np.eye(width, d), np.eye(width)[d]), layers, readout)


def scale_to(size: float, bounds: Float[np.ndarray, "h n"]) -> Float[np.ndarray, " h"]:
    """Powers of two that bring the signals of each head down to `size`."""
    return power_of_two(size / positive(np.max(bounds, axis=1)))


def linear_size(envelope: Envelope) -> float:
    """At which SiLU is linear: its relative error is half of this."""
    return envelope.roundoff / 8


def norm_size(envelope: Envelope, eps: float) -> float:
    """At which a norm divides by √ε: its relative error is at most half of the square of this over ε."""
    return float(np.sqrt(eps * envelope.roundoff / 4))


def unit_size(envelope: Envelope, heads: Heads, eps: float) -> float:
    """At which keys of length 1 are as good as keys: SiLU and the norm are linear, and Σ_s k kᵀ is nothing beside 1."""
    together = float(np.max(heads.steps)) * heads.keys.shape[1]
    return min(linear_size(envelope), float(np.sqrt(envelope.roundoff * eps / (2 * together))))


def rows_of(signal: Float[np.ndarray, "h n inputs"], scale: Float[np.ndarray, " h"] | float, width: int) -> np.ndarray:
    """Rows over x̃ of all heads, scaled by head, as rows over the layer's input."""
    rows = (signal * np.reshape(scale, (-1, 1, 1))).reshape(-1, signal.shape[2])
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def out_of(heads: Heads, scale: Float[np.ndarray, " h"], width: int) -> np.ndarray:
    """y as the first of the layer's outputs, where each head's reads come times `scale`."""
    out = heads.out / np.repeat(scale, heads.values.shape[1])
    return np.pad(out, ((0, width - len(out)), (0, 0)))


def gates_of(heads: Heads, width: int) -> np.ndarray:
    """For each value a row that reads `ONE` off the constant."""
    count, _, d_value, _ = heads.sizes
    return rows_of(np.tile(ONE * heads.constant, (count, d_value, 1)), 1.0, width)


def centred(heads: Heads) -> Heads:
    """With −Σ v as one more value: the mean that a norm subtracts is then 0."""
    count, _, d_value, _ = heads.sizes
    columns = heads.out.reshape(len(heads.out), count, d_value)
    return dataclasses.replace(
        heads,
        values=np.concatenate([heads.values, -heads.values.sum(axis=1, keepdims=True)], axis=1),
        out=np.pad(columns, ((0, 0), (0, 0), (0, 1))).reshape(len(heads.out), -1),
    )
