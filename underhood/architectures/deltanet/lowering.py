"""Attention → Gated DeltaNet in one layer with d_k·d_v numbers a head or fewer, gated RNN → two layers.

Keys and queries of length 1 are no hindrance: x/√(Σ x² + ε) is x/√ε for small x. The same smallness makes β k kᵀ
nothing beside 1, so nothing is forgotten along the keys, and SiLU linear.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.deltanet.cell import GatedDeltaNet
from underhood.compiler.decays import log_rate
from underhood.compiler.envelope import Envelope
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import ONE, linear_size, out_of, register_memory, rows_of, scale_to, unit_size
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection

EPS = UNIT_EPS = 1e-6  # of the norm, the public module's default, and of keys and queries of length 1
BETA = 0.5  # σ(0)


def to_gated_deltanet(heads: Heads, width: int, envelope: Envelope) -> Made:
    """A head of keys for each head of values."""
    count, d_key, d_value, _ = heads.sizes
    size, unit = linear_size(envelope), unit_size(envelope, heads, UNIT_EPS)
    in_value = scale_to(size, heads.value_bounds)
    in_key, in_query = scale_to(unit, heads.key_bounds), scale_to(unit, heads.query_bounds)
    by_head = np.concatenate(
        [
            heads.queries * in_query[:, None, None],
            heads.keys * in_key[:, None, None],
            heads.values * in_value[:, None, None],
            np.tile(ONE * heads.constant, (count, d_value, 1)),
        ],
        axis=1,
    )
    # SiLU halves each of the three; two are divided by √ε, the query by √d_k.
    scale = BETA * in_value * in_key * in_query / 8 / UNIT_EPS / np.sqrt(d_key)
    layer = GatedDeltaNet(
        in_proj_qkvz=Projection(rows_of(by_head, 1.0, width)),
        in_proj_ba=Projection(np.zeros((2 * count, width))),
        conv1d=Convolution.off(count * (2 * d_key + d_value), 1, bias=False),
        dt_bias=np.full(count, ONE),
        A_log=log_rate(heads.decay, ONE),
        norm=Norm(np.ones(d_value), eps=EPS),
        out_proj=Projection(out_of(heads, scale * ONE / np.sqrt(EPS), width)),
        key_heads=count,
    )
    largest = float(np.max(heads.read_bounds * scale[:, None]))
    length = d_key * (unit / 2) ** 2 / UNIT_EPS
    forgotten = BETA * float(np.max(heads.steps)) * length
    # What is too small to be forgotten is rounded away by as much again.
    left = size / 2 + unit + length + 2 * forgotten + 0.5 * largest**2 / EPS
    return Made(layer, heads, left, (in_value / 2, in_key / 2, in_query / 2, scale))


register_memory("gated-deltanet", to_gated_deltanet)
