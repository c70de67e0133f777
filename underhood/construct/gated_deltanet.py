"""Attention → Gated DeltaNet in one layer with d_k·d_v numbers a head, gated RNN → two layers.

Keys and queries of length 1 are no hindrance: x/√(Σ x² + ε) is x/√ε for small x. The same smallness makes β k kᵀ nothing
beside 1, so nothing is forgotten along the keys, and SiLU linear.
"""

from __future__ import annotations

import numpy as np

from underhood.cells import Convolution, GatedDeltaNet, Norm, Projection
from underhood.construct.envelope import Envelope
from underhood.construct.mamba2 import log_rate
from underhood.construct.memory import (
    NO_PRODUCT_OF_STATES,
    ONE,
    REACHED,
    Heads,
    attention_through,
    gated_through,
    linear_size,
    small,
    square,
    tall,
    unit_size,
)
from underhood.construct.targets import register_target

EPS = UNIT_EPS = 1e-6  # of the norm, the public module's default, and of keys and queries of length 1
BETA = 0.5  # σ(0)


def to_gated_deltanet(heads: Heads, width: int, envelope: Envelope) -> tuple[GatedDeltaNet, float]:
    """A head of keys for each head of values."""
    count, d_key, d_value, inputs = heads.sizes
    size, unit = linear_size(envelope), unit_size(envelope, heads)
    in_value, in_key, in_query = (
        small(bounds, limit)
        for bounds, limit in ((heads.value_bounds, size), (heads.key_bounds, unit), (heads.query_bounds, unit))
    )
    rows = np.concatenate(
        [
            heads.queries * in_query[:, None, None],
            heads.keys * in_key[:, None, None],
            heads.values * in_value[:, None, None],
            np.tile(ONE * heads.one, (count, d_value, 1)),
        ],
        axis=1,
    )
    # SiLU halves each of the three; two divide by √ε, and the query by √d_k.
    scale = BETA * in_value * in_key * in_query / 8 / UNIT_EPS / np.sqrt(d_key)
    layer = GatedDeltaNet(
        in_proj_qkvz=Projection(square(rows.reshape(-1, inputs), width)),
        in_proj_ba=Projection(np.zeros((2 * count, width))),
        conv1d=Convolution.off(count * (2 * d_key + d_value), 1, bias=False),
        dt_bias=np.full(count, ONE),
        A_log=log_rate(heads.decay, ONE),
        norm=Norm(np.ones(d_value), eps=EPS),
        out_proj=Projection(tall(heads.column_scales(scale * ONE) * np.sqrt(EPS), width)),
        key_heads=count,
    )
    largest = np.max(heads.read_bounds * scale[:, None], initial=0.0)
    length = d_key * (unit / 2) ** 2 / UNIT_EPS
    forgotten = BETA * float(np.max(heads.steps)) * length
    return layer, size / 2 + unit + length + forgotten + 0.5 * largest**2 / EPS


register_target(
    "gated-deltanet",
    attention={1: attention_through(to_gated_deltanet)},
    gated={2: gated_through(to_gated_deltanet)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
