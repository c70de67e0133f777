"""Averages in GLA, features × (d_v + 1) numbers a head: the norm behind the memory divides.

A head reads s N and D, the sums above and below the line, and its norm gives s N/√((s² |N|² + D²)/(d_v + 1) + ε).
"""

from __future__ import annotations

import numpy as np

from underhood.architectures.gla.cell import GLA
from underhood.architectures.gla.lowering import EPS, NORMALIZER
from underhood.compiler.averages import Divider, Reading, register_average
from underhood.compiler.decays import CLOSED
from underhood.compiler.envelope import Envelope, power_of_two
from underhood.compiler.memory import ONE
from underhood.layers.norm import Norm
from underhood.layers.projection import LowRank, Projection


def to_gla(reading: Reading, envelope: Envelope) -> GLA:
    """Keys are padded to the head with most; queries carry the weights, and what lifts D above ε."""
    count, d_value = len(reading.heads), len(reading.heads[0].values)
    d_key = max(len(head.keys) for head in reading.heads)
    unit = envelope.roundoff
    small = float(power_of_two(np.sqrt([unit / (4 * d_value)]))[0])
    lift = power_of_two(2 * np.sqrt(4 * (d_value + 1) * EPS / unit) / reading.least)

    def padded(rows: np.ndarray) -> np.ndarray:
        return np.pad(rows, ((0, d_key - len(rows)), (0, 0)))

    queries = [
        padded(reading.rows(head.queries, head.weights * raised * np.sqrt(d_key)))
        for head, raised in zip(reading.heads, lift, strict=True)
    ]
    values = [reading.rows(np.append(head.values, reading.one), [*[small] * d_value, 1.0]) for head in reading.heads]
    columns = reading.out.reshape(d_value, count, d_value) / (small * np.sqrt(d_value + 1) * ONE)
    out = np.pad(columns, ((0, 0), (0, 0), (0, 1))).reshape(d_value, -1)
    rows = count * (d_value + 1)
    return GLA(
        q_proj=Projection(np.concatenate(queries)),
        k_proj=Projection(np.concatenate([padded(reading.rows(head.keys)) for head in reading.heads])),
        v_proj=Projection(np.concatenate(values)),
        gk_proj=LowRank(np.zeros((1, reading.width)), np.zeros((count * d_key, 1)), np.full(count * d_key, -CLOSED)),
        g_proj=Projection(reading.rows(np.full(rows, reading.one), ONE)),
        g_norm=Norm(np.ones(d_value + 1), eps=EPS),
        o_proj=Projection(reading.padded(out)),
        heads=count,
        gate_logit_normalizer=NORMALIZER,
    )


register_average("gla", Divider(to_gla, lambda heads, features, d_value: heads * features * (d_value + 1)))
