"""Averages in mLSTM: its own normaliser, max(|n·q|, 1), divides where n·q is scaled above 1.

A head's block of the inner signal holds its keys, queries and values, so that it has (2 features + d_v)² numbers; those
that matter are features × (d_v + 1). i = 1 and f = 1, so that m = 0 throughout.
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.mlstm.cell import EPS as DENOMINATOR_EPS
from underhood.architectures.mlstm.cell import MLSTM
from underhood.architectures.mlstm.lowering import EPS
from underhood.compiler.averages import Divider, Places, Reading, register_average
from underhood.compiler.decays import CLOSED
from underhood.compiler.envelope import Envelope, power_of_two
from underhood.compiler.memory import ONE, linear_size, norm_size
from underhood.layers.convolution import Convolution
from underhood.layers.norm import Norm
from underhood.layers.projection import Headwise, Projection


def to_mlstm(reading: Reading, envelope: Envelope) -> MLSTM:
    """Signals come so small that SiLU halves them; values so small that the layer norm behind divides by √ε."""
    blocks = [_block(head) for head in reading.heads]
    count, d_value = len(blocks), len(reading.heads[0].values)
    size = max(max(len(block) for block in blocks), d_value + 1)
    inner, small = count * size, linear_size(envelope)
    in_value = float(power_of_two(np.array([norm_size(envelope, EPS) / (d_value + 1)]))[0])
    lift = 2 * np.maximum(1.0, 4 * DENOMINATOR_EPS / envelope.roundoff) / reading.least
    lift = np.exp2(np.ceil(np.log2(lift * np.sqrt(size))))
    carried, keys, queries, values = np.zeros((inner, reading.width)), *np.zeros((3, count, size, size))
    for index, (head, block) in enumerate(zip(reading.heads, blocks, strict=True)):
        carried[index * size : index * size + len(block)] = reading.rows(block, small)
        place = {int(where): at for at, where in enumerate(block)}
        features = np.arange(len(head.keys))
        keys[index][features, [place[int(at)] for at in head.keys]] = 2 / small
        queries[index][features, [place[int(at)] for at in head.queries]] = head.weights * lift[index] * 2 / small
        of_values = [place[int(at)] for at in head.values]
        values[index][np.arange(d_value), of_values] = in_value / small
        values[index][d_value, of_values] = -in_value / small  # the mean that the norm subtracts is then 0
    columns = reading.out.reshape(d_value, count, d_value) / (in_value * ONE / np.sqrt(EPS))
    out = np.pad(columns, ((0, 0), (0, 0), (0, size - d_value))).reshape(d_value, -1)
    no_weights = np.zeros((count, 3 * inner))
    return MLSTM(
        proj_up=Projection(np.concatenate([carried, reading.rows(np.full(inner, reading.one), ONE)])),
        conv1d=Convolution.off(inner, 1),
        q_proj=Headwise(queries),
        k_proj=Headwise(keys),
        v_proj=Headwise(values),
        igate=Projection(no_weights, np.zeros(count)),
        fgate=Projection(no_weights, np.full(count, -CLOSED)),
        outnorm=Norm(np.ones(inner), eps=EPS, centred=True),
        learnable_skip=np.zeros(inner),
        proj_down=Projection(reading.padded(out)),
    )


def _block(head: Places) -> np.ndarray:
    """What a head reads, each signal once."""
    return np.unique(np.concatenate([head.keys, head.queries, head.values]))


def _numbers(heads: int, features: int, d_value: int) -> int:
    size = max(2 * features - 1 + d_value, d_value + 1)
    return heads * size * (size + 1)


register_average("mlstm", Divider(to_mlstm, _numbers))
