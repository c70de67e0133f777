"""What every construction of a Mamba is made of: channels as rows over (x, 1), and the layer that has them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.stack.cell import Stack
from underhood.layers.convolution import Convolution
from underhood.layers.linear import Linear

WIDTH = 4  # of the public modules' convolution, which is switched off
ONE = 64.0  # SiLU and softplus hand it on unchanged, in float32 and float64
OFF = -1000.0  # softplus is 0
AT_ONCE = 80.0  # A_log with which a channel forgets all, down to Δ = e⁻⁷⁰
MEMORY = -80.0  # and all is kept
STEP_BOUND = 8.0  # |Δ₊ − Δ₋| reaches it: the pair is then hardly larger than its difference
SIGNS = np.array([1.0, -1.0])


@dataclasses.dataclass(frozen=True)
class Channels:
    """Rows over x̃ = (x, 1) for u, Δ and z; decays A_log; D; and the column of each channel in the output."""

    values: Float[np.ndarray, "c inputs"]
    steps: Float[np.ndarray, "c inputs"]
    gates: Float[np.ndarray, "c inputs"]
    a_log: Float[np.ndarray, "c n"]
    skip: Float[np.ndarray, " c"]
    out: Float[np.ndarray, "d_o c"]

    @staticmethod
    def join(*groups: Channels) -> Channels:
        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(group, name) for group in groups], axis=1 if name == "out" else 0)

        return Channels(**{field.name: joined(field.name) for field in dataclasses.fields(Channels)})


def constant(value: float, inputs: int) -> np.ndarray:
    return np.append(np.zeros(inputs - 1), value)


def channels_of(
    values: np.ndarray, out: np.ndarray, a_log: np.ndarray, *, steps=None, gates=None, skip: float = 0.0
) -> Channels:
    """A group of channels; Δ and the gate are `ONE` where none are given, and the output makes up for them."""
    count, inputs = values.shape
    out = out / ((ONE if steps is None else 1.0) * (ONE if gates is None else 1.0))
    one = np.tile(constant(ONE, inputs), (count, 1))
    steps, gates = (one if rows is None else rows for rows in (steps, gates))
    return Channels(values, steps, gates, np.broadcast_to(a_log, (count, a_log.shape[-1])), np.full(count, skip), out)


def silent(values: np.ndarray, outputs: int, states: int) -> Channels:
    """Channels that are there for W_x to read."""
    off = np.tile(constant(OFF, values.shape[1]), (len(values), 1))
    return channels_of(values, np.zeros((outputs, len(values))), np.zeros((1, states)), steps=off)


def readers(inputs: int, outputs: int, states: int) -> Channels:
    """±x and the constant: out of them W_x makes any function of x̃."""
    rows = np.concatenate([np.eye(inputs)[:-1], -np.eye(inputs)[:-1], ONE * np.eye(inputs)[-1:]])
    return silent(rows, outputs, states)


def signed(rows: tuple[np.ndarray, ...], out: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Every product with every choice of signs, in the rows and in the column of the output."""
    signs = np.array(list(itertools.product(SIGNS, repeat=len(rows))))
    copies = [(row[None] * signs[:, i, None, None]).reshape(-1, row.shape[1]) for i, row in enumerate(rows)]
    return copies, np.concatenate([out * np.prod(sign) for sign in signs], axis=1)


def layer_of(channels: Channels, keys: np.ndarray, queries: np.ndarray, width: int) -> Mamba:
    """The layer with B = keys·x̃ and C = queries·x̃, `width` numbers in and out; it reads x̃ off the first channels."""
    count, inputs = channels.values.shape
    step_rows, which = np.unique(channels.steps[:, :-1], axis=0, return_inverse=True)
    wanted = np.concatenate([np.pad(step_rows, ((0, 0), (0, 1))), keys, queries])
    x_proj = np.zeros((len(wanted), count))
    if np.any(wanted):
        d = inputs - 1
        x_proj[:, :d], x_proj[:, d : 2 * d] = wanted[:, :d], -wanted[:, :d]
        if np.any(wanted[:, d]):
            x_proj[:, 2 * d] = wanted[:, d] / ONE
    in_proj = np.zeros((2 * count, width))
    in_proj[:, :inputs] = np.concatenate([channels.values, channels.gates])
    out_proj = np.zeros((width, count))
    out_proj[: len(channels.out)] = channels.out
    return Mamba(
        in_proj=in_proj,
        conv1d=Convolution.off(count, WIDTH),
        x_proj=x_proj,
        dt_proj=np.eye(len(step_rows))[which],
        dt_bias=channels.steps[:, -1],
        a_log=channels.a_log,
        skip=channels.skip,
        out_proj=out_proj,
    )


def with_one(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, 1)))


def stack(layers: tuple[Mamba, ...], rows: np.ndarray, readout: np.ndarray) -> Stack:
    """Embedding (rows x, 1), layers of one width, readout."""
    width = layers[0].d
    embedding, bias = np.zeros((width, rows.shape[1])), np.zeros(width)
    embedding[: len(rows)], bias[len(rows)] = rows, 1.0
    padded = np.zeros((len(readout), width))
    padded[:, : readout.shape[1]] = readout
    return Stack(Linear(embedding, bias), layers, Linear(padded, np.zeros(len(readout))))
