"""Attention → mLSTM in one layer with n² + n numbers a head, n = max(d_k, d_v + 1); gated RNN → two layers.

i = 1, f the decay, queries so small that |n·q| < 1, so the denominator is 1 + ε; values so small that the layer norm divides
by √ε, with −Σ v beside them. Queries and keys are made from SiLU(x) at a scale where it is x/2, values from x.
"""

from __future__ import annotations

import numpy as np

from underhood.algebra.subspaces import row_space
from underhood.cells import MLSTM, Convolution, Headwise, Norm, Projection
from underhood.cells.mlstm import EPS as DENOMINATOR_EPS
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.gla import gate_bias
from underhood.construct.memory import (
    NO_PRODUCT_OF_STATES,
    ONE,
    REACHED,
    Heads,
    attention_through,
    centred,
    gated_through,
    linear_size,
    norm_size,
    square,
    tall,
)
from underhood.construct.targets import register_target

EPS = 1e-5  # the public module's


def to_mlstm(heads: Heads, width: int, envelope: Envelope) -> tuple[MLSTM, float]:
    """x̃, or what the heads read of it, is the inner signal; one block of all of it makes q, k and v."""
    heads = centred(heads)
    count, d_key, d_value, inputs = heads.sizes
    read = np.concatenate([rows.reshape(-1, inputs) for rows in (heads.values, heads.keys, heads.queries)])
    carried = np.eye(inputs) if count * max(d_key, d_value) >= inputs else row_space(read)
    head_dim = max(d_key, d_value, -(-len(carried) // count))
    inner = count * head_dim
    small = float(power_of_two(linear_size(envelope) / np.max(np.abs(carried) @ heads.input_bounds)))
    in_query = power_of_two(0.25 * np.sqrt(head_dim) / positive(heads.score_bounds))
    size = norm_size(envelope, EPS)
    reads = heads.read_bounds * (in_query / np.sqrt(head_dim))[:, None]
    in_value = power_of_two(size / positive(np.max(reads, axis=1)))

    def block(rows: np.ndarray, scale: np.ndarray | float) -> Headwise:
        """Rows over x̃ of each head as a matrix over the inner signal."""
        padded = np.pad(rows, ((0, 0), (0, head_dim - rows.shape[1]), (0, 0))) * np.reshape(scale, (-1, 1, 1))
        return Headwise(np.pad(padded.reshape(inner, inputs) @ carried.T, ((0, 0), (0, inner - len(carried))))[None])

    gate = np.zeros((count, 3 * inner))
    out = np.pad(heads.out.reshape(len(heads.out), count, d_value), ((0, 0), (0, 0), (0, head_dim - d_value)))
    scale = in_query * in_value * ONE / (np.sqrt(head_dim) * (1 + DENOMINATOR_EPS) * np.sqrt(EPS))
    up = np.concatenate(
        [np.pad(carried * small, ((0, inner - len(carried)), (0, 0))), np.tile(ONE * heads.one, (inner, 1))]
    )
    layer = MLSTM(
        proj_up=Projection(square(up, width)),
        conv1d=Convolution.off(inner, 1),
        q_proj=block(heads.queries, in_query * 2 / small),
        k_proj=block(heads.keys, 2 / small),
        v_proj=block(heads.values, in_value / small),
        igate=Projection(gate, np.zeros(count)),
        fgate=Projection(gate, gate_bias(heads.decay)),
        outnorm=Norm(np.ones(inner), eps=EPS, centred=True),
        learnable_skip=np.zeros(inner),
        proj_down=Projection(tall((out / scale[None, :, None]).reshape(len(out), inner), width)),
    )
    return layer, linear_size(envelope) + 0.5 * size**2 / EPS


register_target(
    "mlstm",
    attention={1: attention_through(to_mlstm)},
    gated={2: gated_through(to_mlstm)},
    tolerances=REACHED,
    why_not_fewer=NO_PRODUCT_OF_STATES,
    source="docs/theory.md",
    paper=(None, None),
)
