"""Attention → GLA in one layer with d_k·d_v numbers a head, gated RNN → two layers.

q, k and v are projections as they should be; the gate and the decays are constants, and the values so small that the
norm divides by √ε.
"""

from __future__ import annotations

import numpy as np

from underhood.cells import GLA, LowRank, Norm, Projection
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.memory import (
    CLOSED,
    NO_PRODUCT_OF_STATES,
    ONE,
    REACHED,
    Heads,
    attention_through,
    gated_through,
    norm_size,
    square,
    tall,
)
from underhood.construct.targets import register_target

EPS, NORMALIZER = 1e-5, 16.0  # the public layer's defaults


def to_gla(heads: Heads, width: int, envelope: Envelope) -> tuple[GLA, float]:
    """The queries make up for the layer's 1/√d_k."""
    count, d_key, d_value, inputs = heads.sizes
    size = norm_size(envelope, EPS)
    scale = power_of_two(size / positive(np.max(heads.read_bounds, axis=1)))

    def projection(rows: np.ndarray) -> Projection:
        return Projection(square(rows.reshape(-1, inputs), width))

    layer = GLA(
        q_proj=projection(heads.queries * np.sqrt(d_key)),
        k_proj=projection(heads.keys),
        v_proj=projection(heads.values * scale[:, None, None]),
        gk_proj=LowRank(
            np.zeros((1, width)), np.zeros((count * d_key, 1)), np.repeat(gate_bias(heads.decay, NORMALIZER), d_key)
        ),
        g_proj=projection(np.tile(ONE * heads.one, (count * d_value, 1))),
        g_norm=Norm(np.ones(d_value), eps=EPS),
        o_proj=Projection(tall(heads.column_scales(scale * ONE) * np.sqrt(EPS), width)),
        heads=count,
    )
    return layer, 0.5 * size**2 / EPS


def gate_bias(decay: np.ndarray, normalizer: float = 1.0) -> np.ndarray:
    """b with σ(b)^{1/normalizer} = decay, exactly at 0 and 1."""
    logarithm = normalizer * np.log(np.clip(decay, 1e-300, 1 - 1e-16))
    inner = logarithm - np.log(-np.expm1(logarithm))
    return np.where(decay == 1, -CLOSED, np.where(decay == 0, normalizer * CLOSED, inner))


register_target(
    "gla",
    attention={1: attention_through(to_gla)},
    gated={2: gated_through(to_gla)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
