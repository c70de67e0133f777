"""Attention → RWKV-7 in one layer with d_k·(d_v + 1) numbers a head, gated RNN → two layers.

k_k = k_a = 0: nothing is taken away, and k is written as it is. Values so small that the group norm divides by √ε, with −Σ v
beside them. A channel forgets at most 45 % a step; a head that forgets at once is the bonus (r·(k ⊙ r_k)) v instead.
"""

from __future__ import annotations

import numpy as np

from underhood.cells import RWKV7, LowRank, Norm, Projection
from underhood.cells.rwkv7 import FASTEST
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.memory import (
    CLOSED,
    NO_PRODUCT_OF_STATES,
    REACHED,
    Heads,
    attention_through,
    centred,
    gated_through,
    norm_size,
    square,
    tall,
)
from underhood.construct.targets import register_target
from underhood.errors import NotConstructible

EPS = 1e-5  # of the public layer, for each key of a head


def to_rwkv7(heads: Heads, width: int, envelope: Envelope) -> tuple[RWKV7, float]:
    """The gate is σ(0) = ½ times 2."""
    least = float(np.exp(FASTEST))
    slow = np.where(heads.decay == 0, 1.0, heads.decay)
    if np.any(slow < least):
        reason = f"no channel forgets more than 1 − {least:.4f} a step, and a decay is {np.min(slow):.4g}"
        raise NotConstructible("rwkv7", layers=1, needs=1, reason=reason, source="arXiv 2503.14456")
    heads = centred(heads)
    count, d_key, d_value, inputs = heads.sizes
    eps, now = EPS * d_key, heads.decay == 0
    size = norm_size(envelope, eps)
    scale = power_of_two(size / positive(np.max(heads.read_bounds, axis=1)))

    def projection(rows: np.ndarray) -> Projection:
        return Projection(square(rows.reshape(-1, inputs), width))

    def low_rank(rows: int, up: float, bias: np.ndarray | None) -> LowRank:
        return LowRank(np.zeros((1, width)), np.full((rows, 1), up), bias, "sigmoid" if bias is None else "none")

    share = np.log(slow) / FASTEST
    with np.errstate(divide="ignore"):
        logit = np.where(share == 0, CLOSED, np.log(share) - np.log1p(-np.minimum(share, 1 - 2.0**-53)))
    still = np.zeros(width)
    remembers = np.repeat(np.where(now, 0.0, 1.0), d_value)
    layer = RWKV7(
        **{f"x_{name}": still for name in "rwkvag"},
        r_proj=projection(heads.queries),
        k_proj=projection(heads.keys),
        v_proj=projection(heads.values * scale[:, None, None]),
        w_lora=low_rank(count * d_key, 0.0, np.repeat(logit, d_key)),
        a_lora=low_rank(count * d_key, 0.0, np.zeros(count * d_key)),
        g_lora=low_rank(count * d_value, 2.0, None),
        k_k=np.zeros(count * d_key),
        k_a=np.zeros(count * d_key),
        r_k=np.repeat(np.where(now, 1.0, 0.0), d_key).reshape(count, d_key),
        g_norm=Norm(remembers, np.zeros(count * d_value), eps=eps, centred=True),
        o_proj=Projection(tall(heads.column_scales(np.where(now, scale, scale / np.sqrt(eps))), width)),
    )
    return layer, 0.5 * size**2 / eps


register_target(
    "rwkv7",
    attention={1: attention_through(to_rwkv7)},
    gated={2: gated_through(to_rwkv7)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
