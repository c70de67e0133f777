"""What every construction of a Mamba is made of: channels as rows over (x, 1), and the layer that has them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

from underhood.architectures.mamba.cell import Mamba
from underhood.architectures.stack.cell import Stack
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic, Signal, join
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
    fixed = np.tile(constant(ONE, inputs), (count, 1))
    steps, gates = (fixed if rows is None else rows for rows in (steps, gates))
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


def outputs_of(channels: Channels, keys: np.ndarray, queries: np.ndarray, x: Signal, arithmetic: Arithmetic) -> Signal:
    """What `layer_of` computes of x̃, with its errors.

    Of a pair of channels, |SiLU(z)| + |SiLU(−z)| = |z|, and softplus(z) + softplus(−z) ≤ |z| + 2 log 2: sizes and
    errors are the means of a pair, because all choices of signs are added up with the same weight.
    """
    u = _halved(channels.values, x, arithmetic)
    readers = join(_halved(np.eye(len(x.size))[:-1], x, arithmetic), Signal(np.array([ONE]), np.zeros(1)))
    reading = np.abs(np.concatenate([keys, queries]))
    weights = np.hstack([2 * reading[:, :-1], reading[:, -1:] / ONE])
    both = arithmetic.linear(weights, readers, reading @ x.size)
    both = Signal(both.size, both.error + arithmetic.gamma(len(x.size)) * both.reach)  # of each x twice, + and −
    count = len(keys)
    b, c = both[:count], both[count:]
    step = _steps(channels.steps, x, arithmetic)
    driven = arithmetic.times(step, u)
    written = arithmetic.times(driven[:, None], b[None])
    lambda_ = np.where(channels.a_log == AT_ONCE, 0.0, np.exp(-ONE * np.exp(channels.a_log)))
    lambda_ = np.where(channels.a_log == MEMORY, 1.0, lambda_)
    states = arithmetic.total(written, lambda_)
    each = arithmetic.times(states, c[None])
    kept = arithmetic.gamma(count + WEIGHT) * each.reach.sum(axis=1)
    read = Signal(each.size.sum(axis=1), each.error.sum(axis=1) + kept)
    skipped = Signal(np.abs(channels.skip) * u.size, np.abs(channels.skip) * u.error)
    together = Signal(read.size + skipped.size, read.error + skipped.error)
    together = Signal(together.size, together.error + 4 * arithmetic.unit * together.reach)
    gated = arithmetic.times(together, _halved(channels.gates, x, arithmetic))
    return arithmetic.linear(channels.out, gated)


def _halved(rows: np.ndarray, x: Signal, arithmetic: Arithmetic) -> Signal:
    """SiLU(rows·x), the mean of a pair; rows that read the constant alone have no partner."""
    argument = arithmetic.linear(rows, x)
    alone = np.all(rows[:, :-1] == 0, axis=1)
    size = argument.size / np.where(alone, 1, 2)
    error = np.where(alone, 1.1, 0.6) * argument.error
    rounded = ELEMENTARY * arithmetic.unit * (size + error) + arithmetic.least * (1 + argument.reach)
    return Signal(size, error + rounded)


def _steps(rows: np.ndarray, x: Signal, arithmetic: Arithmetic) -> Signal:
    """softplus(rows·x): the mean of a pair, or a constant. W_x and W_δ make the argument, in pairs ±x."""
    argument = arithmetic.linear(rows, x)
    fixed = np.all(rows[:, :-1] == 0, axis=1)
    size = np.where(fixed, np.logaddexp(0, rows[:, -1]), np.log(2) + argument.size / 2)
    moved = argument.error * 2 + arithmetic.gamma(2 * len(x.size) + WEIGHT + 2 * ELEMENTARY) * argument.reach
    slope = np.where(fixed, np.where(rows[:, -1] <= OFF, 0.0, 1.0), 0.5)
    error = slope * moved
    return Signal(size, error + ELEMENTARY * arithmetic.unit * (size + error) + np.where(size > 0, arithmetic.least, 0))
