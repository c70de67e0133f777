"""Attention → GLA in one layer with d_k·d_v numbers a head or fewer, gated RNN → two layers.

q, k and v are projections as they should be; the gate and the decays are constants, and the values so small that the
norm divides by √ε.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.gla.cell import GLA
from underhood.compiler.decays import root_logit
from underhood.compiler.envelope import Envelope
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import ONE, gates_of, norm_size, out_of, register_memory, rows_of, scale_to
from underhood.layers.norm import Norm
from underhood.layers.projection import LowRank, Projection

EPS, NORMALIZER = 1e-5, 16.0  # the public layer's defaults


def to_gla(heads: Heads, width: int, envelope: Envelope) -> Made:
    """The queries make up for the layer's 1/√d_k."""
    count, d_key, d_value, _ = heads.sizes
    size = norm_size(envelope, EPS)
    scale = scale_to(size, heads.read_bounds)
    bias = np.repeat(root_logit(heads.decay, NORMALIZER), d_key)
    layer = GLA(
        q_proj=Projection(rows_of(heads.queries, float(np.sqrt(d_key)), width)),
        k_proj=Projection(rows_of(heads.keys, 1.0, width)),
        v_proj=Projection(rows_of(heads.values, scale, width)),
        gk_proj=LowRank(np.zeros((1, width)), np.zeros((count * d_key, 1)), bias),
        g_proj=Projection(gates_of(heads, width)),
        g_norm=Norm(np.ones(d_value), eps=EPS),
        o_proj=Projection(out_of(heads, scale * ONE / np.sqrt(EPS), width)),
        heads=count,
        gate_logit_normalizer=NORMALIZER,
    )
    return Made(layer, heads, 0.5 * size**2 / EPS, (scale, 1.0, np.sqrt(d_key), scale))


register_memory("gla", to_gla)
