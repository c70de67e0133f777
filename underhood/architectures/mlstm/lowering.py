"""Attention → mLSTM in one layer with n² + n numbers a head, n = max(d_k, d_v + 1); gated RNN → two layers.

i = 1, f is the decay, and queries are so small that |n·q| < 1: the denominator is 1 + ε. Values are so small that the
layer norm divides by √ε, with −Σ v beside them. Queries and keys are made from SiLU(x) where it is x/2, values from x.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from underhood.algebra.subspaces import row_space
from underhood.architectures.mlstm.cell import EPS as DENOMINATOR_EPS
from underhood.architectures.mlstm.cell import MLSTM
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.heads import Heads, Made
from underhood.compiler.memory import (
    ONE,
    centred,
    gates_of,
    linear_size,
    norm_size,
    out_of,
    register_memory,
    rows_of,
    scale_to,
)
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Headwise, Projection

EPS = 1e-5  # the public module's


def to_mlstm(heads: Heads, width: int, envelope: Envelope) -> Made:
    """x̃, or what the heads read of it, is the inner signal; one block of all of it makes q, k and v."""
    heads, carried = _padded(centred(heads))
    count, head_dim, _, inputs = heads.sizes
    inner = count * head_dim
    small = float(scale_to(linear_size(envelope), (np.abs(carried) @ heads.input_bounds)[None])[0])
    in_query = power_of_two(0.25 * np.sqrt(head_dim) / positive(heads.score_bounds))
    size, score = norm_size(envelope, EPS), in_query / (np.sqrt(head_dim) * (1 + DENOMINATOR_EPS))
    in_value = scale_to(size, heads.read_bounds * score[:, None])

    def block(signal: np.ndarray, scale: np.ndarray | float) -> Headwise:
        return Headwise((rows_of(signal, scale, inputs) @ carried.T)[None])

    no_weights = np.zeros((count, 3 * inner))
    layer = MLSTM(
        proj_up=Projection(np.concatenate([rows_of(carried[None], small, width), gates_of(heads, width)])),
        conv1d=Convolution.off(inner, 1),
        q_proj=block(heads.queries, in_query * 2 / small),
        k_proj=block(heads.keys, 2 / small),
        v_proj=block(heads.values, in_value / small),
        igate=Projection(no_weights, np.zeros(count)),
        fgate=Projection(no_weights, logit(heads.decay)),
        outnorm=Norm(np.ones(inner), eps=EPS, centred=True),
        learnable_skip=np.zeros(inner),
        proj_down=Projection(out_of(heads, score * in_value * ONE / np.sqrt(EPS), width)),
    )
    # q, k and v are made of what is carried: what its basis leaves out, and how much larger its signals are.
    lost, mixing = 0.0, 1.0
    for signal in (heads.values, heads.keys, heads.queries):
        rows = signal.reshape(-1, inputs)
        bounds = positive(np.abs(rows) @ heads.input_bounds)
        mixed = np.abs(rows @ carried.T) @ np.abs(carried)
        rest = np.abs(rows - rows @ carried.T @ carried) + inputs * 2.0**-52 * mixed
        rest[np.abs(rows) @ heads.input_bounds == 0] = 0
        lost += float(np.max(rest @ heads.input_bounds / bounds))
        mixing = max(mixing, float(np.max(mixed @ heads.input_bounds / bounds)))
    if np.count_nonzero(carried) > len(carried):  # a second product of matrices that rounds
        mixing *= 2
    left = 2 * mixing * linear_size(envelope) + 0.5 * size**2 / EPS + lost
    return Made(layer, heads, left, (in_value, small, in_query * small, score * in_value), centred=True, mixing=mixing)


def _padded(heads: Heads) -> tuple[Heads, np.ndarray]:
    """As many keys as values in each head, together no fewer than the inner signal, which comes with them."""
    count, d_key, d_value, inputs = heads.sizes
    rows = np.concatenate([signal.reshape(-1, inputs) for signal in (heads.values, heads.keys, heads.queries)])
    carried = np.eye(inputs) if count * max(d_key, d_value) >= inputs else row_space(rows)
    head_dim = max(d_key, d_value, -(-len(carried) // count))

    def padded(signal: np.ndarray) -> np.ndarray:
        return np.pad(signal, ((0, 0), (0, head_dim - signal.shape[1]), (0, 0)))

    columns = heads.out.reshape(len(heads.out), count, d_value)
    out = np.pad(columns, ((0, 0), (0, 0), (0, head_dim - d_value))).reshape(len(heads.out), -1)
    signals = {name: padded(getattr(heads, name)) for name in ("values", "keys", "queries")}
    carried = np.pad(carried, ((0, count * head_dim - len(carried)), (0, 0)))
    return dataclasses.replace(heads, **signals, out=out), carried


register_memory("mlstm", to_mlstm)
