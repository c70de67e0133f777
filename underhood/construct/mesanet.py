"""Attention → MesaNet in one layer with d_k·(d_k + d_v) numbers a head, gated RNN → two layers.

Keys so small that H = Σ β k kᵀ is nothing beside Λ: then (H + Λ)^{-1} q = q/Λ. The same smallness makes keys of length 1 as
good as keys, and SiLU linear.
"""

from __future__ import annotations

import numpy as np

from underhood.cells import Convolution, MesaNet, Norm, Projection
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.gla import gate_bias
from underhood.construct.memory import (
    NO_PRODUCT_OF_STATES,
    ONE,
    REACHED,
    Heads,
    attention_through,
    gated_through,
    norm_size,
    small,
    square,
    tall,
    unit_size,
)
from underhood.construct.targets import register_target

EPS, UNIT_EPS = 1e-5, 1e-6  # of the norm, the public layer's default, and of keys and queries of length 1
BETA, RIDGE = 0.5, ONE + 0.25  # σ(0), and softplus(64) + ¼


def to_mesanet(heads: Heads, width: int, envelope: Envelope) -> tuple[MesaNet, float]:
    """Linear attention is the Mesa layer of a large ridge."""
    count, d_key, d_value, inputs = heads.sizes
    unit, size = unit_size(envelope, heads), norm_size(envelope, EPS)
    in_key, in_query = small(heads.key_bounds, unit), small(heads.query_bounds, unit)
    # SiLU halves both, both are divided by √ε, and the query by Λ.
    score = BETA * in_key * in_query / 4 / UNIT_EPS / RIDGE
    in_value = power_of_two(size / positive(np.max(heads.read_bounds, axis=1) * score))

    def projection(rows: np.ndarray, scale: np.ndarray) -> Projection:
        return Projection(square((rows * scale[:, None, None]).reshape(-1, inputs), width))

    layer = MesaNet(
        q_proj=projection(heads.queries, in_query),
        k_proj=projection(heads.keys, in_key),
        v_proj=projection(heads.values, in_value),
        a_proj=Projection(np.zeros((count, width)), gate_bias(heads.decay)),
        b_proj=Projection(np.zeros((count, width)), np.zeros(count)),
        q_conv1d=Convolution.off(count * d_key, 1, bias=False),
        k_conv1d=Convolution.off(count * d_key, 1, bias=False),
        lambda_params=np.full(count * d_key, ONE),
        o_norm=Norm(np.ones(d_value), eps=EPS),
        o_proj=Projection(tall(heads.column_scales(score * in_value) * np.sqrt(EPS), width)),
    )
    length = d_key * (unit / 2) ** 2 / UNIT_EPS
    solved = BETA * float(np.max(heads.steps)) * length / RIDGE
    return layer, unit + length + solved + 0.5 * size**2 / EPS


register_target(
    "mesanet",
    attention={1: attention_through(to_mesanet)},
    gated={2: gated_through(to_mesanet)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
