"""Attention → MesaNet in one layer with d_k·(d_k + d_v) numbers a head or fewer, gated RNN → two layers.

Keys are so small that H = Σ β k kᵀ is nothing beside Λ: (H + Λ)^{-1} q is q/Λ. The same smallness makes keys of length
1 as good as keys, and SiLU linear.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.mesanet.cell import MesaNet
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import ONE, norm_size, out_of, register_memory, rows_of, scale_to, unit_size
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection

EPS, UNIT_EPS = 1e-5, 1e-6  # of the norm, the public layer's default, and of keys and queries of length 1
BETA, RIDGE = 0.5, ONE + 0.25  # σ(0), and softplus(64) + ¼


def to_mesanet(heads: Heads, width: int, envelope: Envelope) -> Made:
    """Linear attention is a Mesa layer of large ridge."""
    count, d_key, d_value, _ = heads.sizes
    unit, size = unit_size(envelope, heads, UNIT_EPS), norm_size(envelope, EPS)
    in_key, in_query = scale_to(unit, heads.key_bounds), scale_to(unit, heads.query_bounds)
    score = BETA * in_key * in_query / 4 / UNIT_EPS / RIDGE  # SiLU halves both, both are divided by √ε
    in_value = scale_to(size, heads.read_bounds * score[:, None])
    layer = MesaNet(
        q_proj=Projection(rows_of(heads.queries, in_query, width)),
        k_proj=Projection(rows_of(heads.keys, in_key, width)),
        v_proj=Projection(rows_of(heads.values, in_value, width)),
        a_proj=Projection(np.zeros((count, width)), logit(heads.decay)),
        b_proj=Projection(np.zeros((count, width)), np.zeros(count)),
        q_conv1d=Convolution.off(count * d_key, 1, bias=False),
        k_conv1d=Convolution.off(count * d_key, 1, bias=False),
        lambda_params=np.full(count * d_key, ONE),
        o_norm=Norm(np.ones(d_value), eps=EPS),
        o_proj=Projection(out_of(heads, score * in_value / np.sqrt(EPS), width)),
    )
    length = d_key * (unit / 2) ** 2 / UNIT_EPS
    solved = BETA * float(np.max(heads.steps)) * length / RIDGE
    left = unit + length + 2 * solved + 0.5 * size**2 / EPS
    return Made(layer, heads, left, (in_value, in_key / 2, in_query / 2, score * in_value))


register_memory("mesanet", to_mesanet)
