"""Attention → Mamba-2 in one layer with d_k·d_v numbers a head, gated RNN → two layers.

B = keys, C = queries and x = values, so small that SiLU is linear and the norm divides by √ε; Δ, the gate and the decays
are constants, D = 0.
"""

from __future__ import annotations

import numpy as np

from underhood.cells import Convolution, Mamba2, Norm, Projection
from underhood.construct.envelope import Envelope
from underhood.construct.memory import (
    CLOSED,
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
)
from underhood.construct.targets import register_target

EPS = 1e-5  # the public module's default


def to_mamba2(heads: Heads, width: int, envelope: Envelope) -> tuple[Mamba2, float]:
    """A group for each head."""
    count, d_key, d_value, inputs = heads.sizes
    size, inner = linear_size(envelope), count * d_value
    scales = [small(bounds, size) for bounds in (heads.value_bounds, heads.key_bounds, heads.query_bounds)]
    signals = [
        (rows * scale[:, None, None]).reshape(-1, inputs)
        for rows, scale in zip((heads.values, heads.keys, heads.queries), scales, strict=True)
    ]
    gate = np.tile(ONE * heads.one, (inner, 1))
    rows = np.concatenate([gate, *signals, np.zeros((count, inputs))])
    product = ONE * np.prod(scales, axis=0) / 8  # SiLU halves each of the three
    layer = Mamba2(
        in_proj=Projection(square(rows, width)),
        conv1d=Convolution.off(inner + 2 * count * d_key, 1),
        dt_bias=np.full(count, ONE),
        A_log=log_rate(heads.decay, ONE),
        D=np.zeros(count),
        norm=Norm(np.ones(inner), eps=EPS),
        out_proj=Projection(tall(heads.column_scales(product * ONE) * np.sqrt(EPS), width)),
        groups=count,
    )
    largest = np.max(heads.read_bounds * (product * ONE)[:, None], initial=0.0)
    return layer, 1.5 * size + 0.5 * largest**2 / EPS


def log_rate(decay: np.ndarray, step: float) -> np.ndarray:
    """A_log with exp(−e^{A_log} · step) = decay, exactly at 0 and 1."""
    inner = np.clip(decay, 1e-300, 1 - 1e-16)
    return np.where(decay == 1, CLOSED, np.log(np.where(decay == 0, -CLOSED, -np.log(inner)) / step))


register_target(
    "mamba2",
    attention={1: attention_through(to_mamba2)},
    gated={2: gated_through(to_mamba2)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
