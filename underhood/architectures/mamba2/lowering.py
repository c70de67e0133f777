"""Attention → Mamba-2 in one layer with d_k·d_v numbers a head or fewer, gated RNN → two layers.

B = keys, C = queries and x = values, so small that SiLU is linear and the norm divides by √ε; Δ, the gate and the
decays are constants, and D = 0.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.mamba2.cell import Mamba2
from underhood.compiler.decays import log_rate
from underhood.compiler.envelope import Envelope
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import ONE, gates_of, linear_size, out_of, register_memory, rows_of, scale_to
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Projection

EPS = 1e-5  # the public module's default


def to_mamba2(heads: Heads, width: int, envelope: Envelope) -> Made:
    """A group for each head."""
    count, d_key, d_value, _ = heads.sizes
    size, inner = linear_size(envelope), count * d_value
    bounds = heads.value_bounds, heads.key_bounds, heads.query_bounds
    scales = [scale_to(size, each) for each in bounds]
    signals = map(rows_of, (heads.values, heads.keys, heads.queries), scales, (width,) * 3)
    scale = ONE * np.prod(scales, axis=0) / 8 * ONE  # Δ; SiLU halves each of the three; the gate
    layer = Mamba2(
        in_proj=Projection(np.concatenate([gates_of(heads, width), *signals, np.zeros((count, width))])),
        conv1d=Convolution.off(inner + 2 * count * d_key, 1),
        dt_bias=np.full(count, ONE),
        A_log=log_rate(heads.decay, ONE),
        D=np.zeros(count),
        norm=Norm(np.ones(inner), eps=EPS),
        out_proj=Projection(out_of(heads, scale / np.sqrt(EPS), width)),
        groups=count,
    )
    largest = float(np.max(heads.read_bounds * scale[:, None]))
    left = 1.5 * size + 0.5 * largest**2 / EPS
    return Made(layer, heads, left, (scales[0] / 2, scales[1] / 2, scales[2] / 2, scale))


register_memory("mamba2", to_mamba2)
