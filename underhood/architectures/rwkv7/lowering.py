"""Attention → RWKV-7 in one layer with d_k·(d_v + 1) numbers a head, gated RNN → two layers.

Values are so small that the group norm divides by √ε, with −Σ v beside them. How a head forgets:

    γ ≥ 0.5453   w = γ and k_k = 0: nothing is taken away along the keys (w cannot forget more than 45 % a step)
    γ < 0.5453   keys of size 1: κ is ±1, so w − a κ² = 1 − a is any number. It would be 1 where k is 0, so the key is
                 k + c, c beyond its bound, and a head with the key c is taken away again: twice the numbers
    γ = 0        the bonus (r·(k ⊙ r_k)) v, which needs no memory
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underhood.architectures.rwkv7.cell import FASTEST, RWKV7
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import centred, norm_size, out_of, register_memory, rows_of, scale_to
from underhood.layers.norm import Norm
from underhood.layers.projection import LowRank, Projection

EPS = 1e-5  # of the public layer, for each key of a head
SLOWEST = float(np.exp(FASTEST))


def to_rwkv7(heads: Heads, width: int, envelope: Envelope) -> Made:
    """No token is mixed with the one before. The gate is σ(0) = ½ times 2."""
    if np.any(_is_fast(heads.decay)):
        heads = _with_shifted_keys(_with_keys_apart(heads))
    heads = centred(heads)
    count, d_key, d_value, _ = heads.sizes
    at_once, fast = heads.decay == 0, _is_fast(heads.decay)
    eps = EPS * d_key
    size = norm_size(envelope, eps)
    scale = scale_to(size, heads.read_bounds)
    share = np.where(at_once | fast, 0.0, np.log(np.where(at_once, 1.0, heads.decay)) / FASTEST)

    def for_keys(by_head: np.ndarray) -> np.ndarray:
        return np.repeat(by_head, d_key)

    layer = RWKV7(
        **{f"x_{name}": np.zeros(width) for name in "rwkvag"},
        r_proj=Projection(rows_of(heads.queries, 1.0, width)),
        k_proj=Projection(rows_of(heads.keys, 1.0, width)),
        v_proj=Projection(rows_of(heads.values, scale, width)),
        w_lora=LowRank(np.zeros((1, width)), np.zeros((count * d_key, 1)), for_keys(logit(share)), "tanh"),
        a_lora=LowRank(np.zeros((1, width)), np.zeros((count * d_key, 1)), for_keys(logit(1 - heads.decay))),
        g_lora=LowRank(np.zeros((1, width)), np.full((count * d_value, 1), 2.0), activation="sigmoid"),
        k_k=for_keys(np.where(fast, 1.0, 0.0)),
        k_a=np.zeros(count * d_key),
        r_k=for_keys(np.where(at_once, 1.0, 0.0)).reshape(count, d_key),
        g_norm=Norm(np.repeat(np.where(at_once, 0.0, 1.0), d_value), np.zeros(count * d_value), eps, centred=True),
        o_proj=Projection(out_of(heads, np.where(at_once, scale, scale / np.sqrt(eps)), width)),
    )
    # κ is ±1 to a few units, and so is w − a κ² = γ: Σ n γ^{n−1} ≤ 5 times that for γ < 0.5453, and S takes two sums
    # per step.
    forgetting = 128 * envelope.roundoff if np.any(fast) else 0.0
    left = 0.5 * size**2 / eps + forgetting
    return Made(layer, heads, left, (scale, 1.0, 1.0, scale), centred=True)


def _is_fast(decay: np.ndarray) -> np.ndarray:
    return (decay > 0) & (decay < SLOWEST)


def _with_keys_apart(heads: Heads) -> Heads:
    """A head for each key, with the same values."""
    count, d_key, d_value, inputs = heads.sizes

    def repeated(array: np.ndarray) -> np.ndarray:
        return np.repeat(array, d_key, axis=0)

    columns = heads.out.reshape(len(heads.out), count, d_value)
    return dataclasses.replace(
        heads,
        values=repeated(heads.values),
        keys=heads.keys.reshape(count * d_key, 1, inputs),
        queries=heads.queries.reshape(count * d_key, 1, inputs),
        decay=repeated(heads.decay),
        steps=repeated(heads.steps),
        out=np.repeat(columns, d_key, axis=1).reshape(len(heads.out), -1),
    )


def _with_shifted_keys(heads: Heads) -> Heads:
    """k + c for the keys of heads that forget fast, and the same heads with the key c, taken away.

    Keys are brought to a size of ½ to 1 before, whatever their own, and c is 2: hardly larger than what it shifts.
    """
    count, _, d_value, _ = heads.sizes
    fast = _is_fast(heads.decay)
    scale = np.where(fast, power_of_two(1 / positive(heads.key_bounds[:, 0])), 1.0)
    shift = np.where(fast, 2.0, 0.0)[:, None, None] * heads.constant
    columns = heads.out.reshape(len(heads.out), count, d_value) / scale[None, :, None]
    return dataclasses.replace(
        heads,
        values=np.concatenate([heads.values, heads.values[fast]]),
        keys=np.concatenate([heads.keys * scale[:, None, None] + shift, shift[fast]]),
        queries=np.concatenate([heads.queries, heads.queries[fast]]),
        decay=np.concatenate([heads.decay, heads.decay[fast]]),
        steps=np.concatenate([heads.steps, heads.steps[fast]]),
        out=np.concatenate([columns, -columns[:, fast]], axis=1).reshape(len(heads.out), -1),
    )


register_memory("rwkv7", to_rwkv7)
