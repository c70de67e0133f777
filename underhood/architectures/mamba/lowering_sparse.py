"""Attention → Mamba with sparse projections: the channels of mamba.py for several heads, and two copies of the weights.

    y = Σ_i out_i Σ_j Σ_± ± SiLU(±q_j/s_j) Σ_s softplus(±s_j k_j) SiLU(±v_i)          eight signs a product (i, j)

The channels of a head are in the order (±k, ±v, i, ±q, j). So values are rows that are repeated and keys and queries
rows that are tiled, and W_out adds up what differs in j. A factor depends on the value i or on the key j alone: what
scales a key is taken back at its query. Of all that is kept, only vectors are as long as the channels.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.mamba.lowering_parts import MEMORY, OFF, ONE, SIGNS, STEP_BOUND, WIDTH
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.heads import Heads, blocks, norm_bounds
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic
from underhood.compiler.settings import SETTINGS
from underhood.compiler.targets import Lowered
from underhood.core.errors import UnderhoodError
from underhood.layers.convolution import Convolution
from underhood.layers.linear import Block, Linear, SparseMatrix

COPIES = len(SIGNS) ** 3
PAIR = 1.01  # softplus(z) + softplus(−z) over |z| at the largest |z|, which is 4 or more


def would_be_large(source: LinearAttention) -> bool:
    """Whether the dense projections are. One head needs no channel for each product, and decays need Δ fixed."""
    if source.heads == 1 or not _keeps_all(source):
        return False
    keys = source.heads * source.d_key
    reads = 2 * source.d + 2 * keys + source.d_out  # W_in, W_x and W_δ, W_out
    return COPIES * keys * min(source.d, source.d_out) * reads > SETTINGS.large


def to_sparse_mamba(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """One layer: eight channels for each product of any number of heads that keep all."""
    if not _keeps_all(source):
        raise UnderhoodError(
            "expected heads that do not decay for a sparse mamba", f"decays {source.decay}", "Leave sparse out."
        )
    heads = blocks(source, envelope)
    count, d_key, d_value, inputs = heads.sizes
    arithmetic = Arithmetic(envelope)
    made = (2 * ELEMENTARY + WEIGHT) * arithmetic.unit  # SiLU, softplus, and their products
    projected = float(arithmetic.gamma(2 * inputs + WEIGHT)) + made
    # Sums over time and over copies add what pairs of Δ have, which is up to K whatever k is.
    summed = 2 * projected + float(arithmetic.summing(1.0)) + made + arithmetic.gamma(COPIES * d_key + WEIGHT)
    of_value, of_key = (float(np.expm1(part + arithmetic.cast)) for part in (1.2 * projected, PAIR * summed))
    rest = float(np.expm1(arithmetic.gamma(count * d_value + WEIGHT)))
    bounds, errors = norm_bounds(heads, of_value, of_key, of_value, rest)
    most = positive(heads.value_bounds) * (heads.steps * positive(heads.query_bounds.sum(axis=1)))[:, None]
    underflow = 64 * inputs * STEP_BOUND * arithmetic.least * (np.abs(heads.out) @ (most + most.max() + 1).ravel())
    return Lowered(_stack(_layer(heads), heads), errors + heads.left_out + underflow, bounds)


def _keeps_all(source: LinearAttention) -> bool:
    return source.decay is None or bool(np.all(np.asarray(source.decay) == 1))


def _layer(heads: Heads) -> Mamba:
    """Channels ±x and 1 for W_x to read, and then those of each head."""
    count, d_key, d_value, inputs = heads.sizes
    d, readers, width = inputs - 1, 2 * inputs - 1, _width(heads)
    of_head = COPIES * d_value * d_key
    channels = readers + count * of_head
    scale = power_of_two(STEP_BOUND / positive(heads.key_bounds))[..., None]
    values, keys, queries = (rows[..., :d] for rows in (heads.values, heads.keys * scale, heads.queries / scale))
    read = [Block(None, 0, d), Block(np.full(d, -1.0), 0, d), Block(np.full(1, ONE), d, 1)]
    u = [Block(_signed(rows), 0, d, repeats=2 * d_key, tiles=2) for rows in values]
    z = [Block(_signed(rows), 0, d, tiles=4 * d_value) for rows in queries]
    steps = [
        Block(np.full(d_key, sign), head * d_key, d_key, tiles=4 * d_value) for head in range(count) for sign in SIGNS
    ]
    flat = keys.reshape(-1, d)
    wanted = [Block(np.hstack([flat, -flat]), 0, 2 * d), Block(np.full((1, 1), 1 / ONE), 2 * d, 1, repeats=2)]
    added = np.kron(np.kron(SIGNS, SIGNS)[:, None], np.kron(np.eye(d_value), SIGNS[:, None]))
    out = [
        Block(added, readers + head * of_head, d_value, repeats=d_key, transposed=True) for head in range(count)
    ] + _nothing(width - count * d_value)
    return Mamba(
        in_proj=SparseMatrix((*read, *u, *_nothing(readers), *z), width),
        conv1d=Convolution.off(channels, WIDTH),
        x_proj=SparseMatrix(tuple(wanted), channels),
        dt_proj=SparseMatrix((*_nothing(readers), *steps), count * d_key),
        dt_bias=np.append(np.full(readers, OFF), np.zeros(channels - readers)),
        a_log=np.full((channels, 1), MEMORY),
        skip=np.zeros(channels),
        out_proj=SparseMatrix(tuple(out), channels),
    )


def _stack(layer: Mamba, heads: Heads) -> Stack:
    """(x, 1), the layer, and `out` of each head."""
    d, width = heads.sizes[3] - 1, layer.d
    embedding = SparseMatrix((Block(None, 0, d), *_nothing(width - d)), d)
    readout = SparseMatrix((Block(heads.out, 0, heads.out.shape[1]),), width)
    return Stack(Linear(embedding, np.eye(width)[d]), (layer,), Linear(readout, np.zeros(len(heads.out))))


def _width(heads: Heads) -> int:
    """Numbers in and out of the layer: as many, as the public modules have it."""
    count, _, d_value, inputs = heads.sizes
    return max(inputs, count * d_value)


def _signed(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, -rows])


def _nothing(rows: int) -> list[Block]:
    """Rows of zeros."""
    return [Block(np.zeros((1, 1)), 0, 1, repeats=rows)] if rows else []
