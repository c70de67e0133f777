"""Attention → Griffin in one layer, gated RNN → Griffin in two, in a limit: the input gate i = σ is linearised.

A pair of channels with u = v and i = σ(±ε k) adds ε k v/2 to its difference, a is the decay, and the branch
GELU(b + q) = b + q multiplies by the query: far from zero GELU is the identity, to the last bit. What b adds is the
same for all keys of a value, and one more pair takes it away: Σ_j (k_j v)(b + q_j) − b (Σ_j k_j v). So a head has
2 d_v (d_k + 1) channels.

The first input is multiplied by 1 instead of m = √(1 − a²). A channel sees it coming: the convolution of a constant
with the kernel (…, −1, 1) is 1 there and 0 later. It moves the gates of that step to σ(β ± ε k), σ'(β) = m σ'(0).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.architectures.griffin.cell import DECAY, BlockGate, Griffin
from underhood.architectures.stack.cell import Stack
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, Rounding, positive
from underhood.compiler.forms import KeyValueForm, rank_revealed
from underhood.compiler.linearise import Linearisation, best_scale, paired
from underhood.compiler.lowered import Lowered
from underhood.compiler.products import copy_products, gated_products
from underhood.compiler.targets import register_target
from underhood.layers.convolution import Convolution
from underhood.layers.linear import Linear

WIDTH = 4  # of the public module's convolution
# GELU(b + q) = b + q for |q| ≤ 1, in both forms of it.
FAR = {np.dtype(np.float64): 10.0, np.dtype(np.float32): 7.0}
# 1 − a² where all is remembered: a power of two that 1 − a² has in this dtype without a loss, though it be computed
# as a difference; T of them are what a memory loses up to the horizon T.
LOSS = {np.dtype(np.float64): 2.0**-36, np.dtype(np.float32): 2.0**-22}
FORGET = 1000.0


def decays(lambda_: Float[np.ndarray, " n"], envelope: Envelope) -> tuple[np.ndarray, np.ndarray]:
    """Λ with a = λ where r = ½, and m = √(1 − a²)."""
    loss = LOSS[envelope.dtype]
    rate = np.where(lambda_ == 1, loss / 2, -np.log(np.clip(lambda_, 1e-300, 1 - loss / 2)))
    inner = np.log(np.expm1(rate * 2 / DECAY))
    return np.where(lambda_ == 0, FORGET, inner), np.where(lambda_ == 0, 1.0, np.sqrt(-np.expm1(-2 * rate)))


def _first_bias(slopes: np.ndarray) -> np.ndarray:
    """β with σ(β)(1 − σ(β)) = slopes/4, below 0."""
    gate = slopes / (2 * (1 + np.sqrt(1 - slopes)))
    return np.log(gate) - np.log1p(-gate)


def _block(
    values: np.ndarray,
    gates: np.ndarray,
    lambda_: np.ndarray,
    asks: np.ndarray,
    out: np.ndarray,
    resting: np.ndarray,
    envelope: Envelope,
    width: int,
) -> Griffin:
    """Channels h = λ h + σ(gates·x̃) (values·x̃), read as GELU(asks·x̃) h; rows over x̃ = (x, 1), `width` numbers wide.

    `resting` gates stay at ½: theirs is the value of σ that the first input moves, not its slope.
    """
    inputs = values.shape[1] - 1
    carried, reads = _carriers(values, gates[:, :-1])
    rows = np.concatenate([values, carried, np.eye(inputs + 1)[-1:]])
    count, used = len(rows), len(values)
    param, scale = decays(lambda_, envelope)
    first = np.where(resting, np.log(scale / 2) - np.log1p(-scale / 2), _first_bias(scale))
    weight, bias = np.zeros((count, count)), np.zeros(count)
    weight[: count - 1, :used], weight[-1, :used], bias[:used] = reads.T, first, gates[:, -1]
    kernel = np.zeros((count, WIDTH))
    kernel[:, -1], kernel[-1, -2] = 1.0, -1.0
    idle = ((0, count - used), (0, 0))
    padded = np.zeros((width, count))
    padded[: len(out), :used] = out / scale
    return Griffin(
        linear_x=_affine(rows, width),
        linear_y=_affine(np.pad(asks, idle), width),
        conv_1d=Convolution(kernel, np.zeros(count)),
        input_gate=BlockGate(weight[None], bias[None]),
        recurrent_gate=BlockGate(np.zeros((1, count, count)), np.zeros((1, count))),
        recurrent_param=np.pad(param, (0, count - used), constant_values=FORGET),
        linear_out=Linear(padded, np.zeros(width)),
    )


def _carriers(values: np.ndarray, gates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gates read u, not x: further rows of u if the values do not tell, and the gates in terms of all of them."""
    plain = values[:, :-1] * np.all(values[:, -1:] == 0, axis=1)[:, None]
    told, where = np.unique(plain, axis=0, return_index=True)
    solved = np.linalg.lstsq(told.T, gates.T, rcond=None)[0]
    largest = np.max(np.abs(gates), initial=0.0)
    if np.max(np.abs(solved.T @ told - gates), initial=0.0) <= 1e-14 * largest and np.linalg.cond(told) < 1e3:
        reads = np.zeros((len(gates), len(values)))
        reads[:, where] = solved.T
        return np.zeros((0, values.shape[1])), reads
    carried, which = np.unique(gates, axis=0, return_inverse=True)
    if len(carried) > gates.shape[1]:
        carried, reads = np.eye(gates.shape[1]), gates
    else:
        reads = np.eye(len(carried))[which.ravel()]
    return np.pad(carried, ((0, 0), (0, 1))), np.hstack([np.zeros((len(gates), len(values))), reads])


def _affine(rows: np.ndarray, width: int) -> Linear:
    return Linear(np.pad(rows[:, :-1], ((0, 0), (0, width - rows.shape[1] + 1))), rows[:, -1])


def _error(scheme: Linearisation, rounding: Rounding, envelope: Envelope, far: float) -> float:
    """Of a product, against its bound: linearisation and rounding of both pairs, and what a memory loses."""
    grown = (rounding.summing + 3 * rounding.step) * rounding.grown(scheme)
    lost = 0.5 * LOSS[envelope.dtype] * (envelope.horizon if rounding.worst else 1)
    return (2 * far + 1) * (scheme.truncation + grown) + lost


def attention_to_griffin(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """One layer: the products of each value with its keys, and a pair for their sum."""
    form, far = rank_revealed(source), FAR[envelope.dtype]
    scheme = best_scale(
        lambda scale: paired(order, scale), lambda scheme: _error(scheme, envelope.typical, envelope, far)
    )
    values, gates, asks, decay, columns = _grouped(form, envelope, far)
    copies = scheme.copies
    copied = np.tile(scheme.nodes, len(values))[:, None] * np.repeat(gates, copies, axis=0)
    out = np.repeat(columns, copies, axis=1) * np.tile(scheme.weights, len(values))
    width = max(form.d, len(form.readout))
    lambda_, resting = np.repeat(decay, copies), np.zeros(copies * len(values), bool)
    rows = (np.repeat(each, copies, axis=0) for each in (values, asks))
    cell = _block(next(rows), copied, lambda_, next(rows), out, resting, envelope, width)
    embedding = Linear(np.eye(width, form.d), np.zeros(width))
    model = Stack(embedding, (cell,), Linear(np.eye(len(form.readout), width), np.zeros(len(form.readout))))
    memory = envelope.linear(form.values) * envelope.linear(form.keys) * envelope.steps(form.decay)
    bounds = np.abs(form.readout) @ (memory * envelope.linear(form.queries)[np.nonzero(form.asks)[1]])
    relative = _error(scheme, envelope.worst, envelope, far) + envelope.dot(len(values))
    return Lowered(model, relative, bounds)


def _grouped(form: KeyValueForm, envelope: Envelope, far: float) -> tuple[np.ndarray, ...]:
    """Rows over x̃ of values, gates and branches, decays, and columns of the output: products, then one more a value.

    Products of one value and one column of the output share that one: b Σ_j K_j Q_j (k_j/K_j), for bounds K and Q.
    """
    asked = form.asks @ form.queries
    keys, queries = positive(envelope.linear(form.keys)), positive(envelope.linear(asked))
    sizes = keys * queries
    labels = np.column_stack([form.values, form.decay, form.readout.T])
    groups, group = np.unique(labels, axis=0, return_inverse=True)
    member = np.eye(len(groups))[group.ravel()]  # (product, group)
    total = sizes @ member
    mean_keys = member.T @ (form.keys * queries[:, None]) / total[:, None]  # Σ K Q (k/K) / Σ K Q
    d = form.d
    values = np.concatenate([form.values, groups[:, :d]])
    gates = np.concatenate([form.keys / keys[:, None], mean_keys])
    asks = np.concatenate([asked / queries[:, None], np.zeros((len(groups), d))])
    columns = np.concatenate([form.readout * sizes, -groups[:, d + 1 :].T * total], axis=1)
    decay = np.concatenate([form.decay, groups[:, d]])
    far_column = np.full((len(asks), 1), far)
    zero = np.zeros((len(values), 1))
    return np.hstack([values, zero]), np.hstack([gates, zero]), np.hstack([asks, far_column]), decay, columns


def to_griffin(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: products of the input gating, remembered with a = λ; products of the output gating, a = 0."""
    whole, far = gated_products(source, envelope), FAR[envelope.dtype]

    def error(scheme: Linearisation, rounding: Rounding) -> float:
        return 2 * _error(scheme, rounding, envelope, far=0.0)

    scheme = best_scale(lambda scale: paired(order, scale), lambda scheme: error(scheme, envelope.typical))
    incoming, outgoing = copy_products(whole.inputs, scheme), copy_products(whole.outputs, scheme)
    width = max(whole.d, len(whole.lambda_), len(whole.readout))
    branch = np.array([far])
    layers = []
    for copies, products, lambda_, out in (
        (incoming, whole.inputs, whole.lambda_[incoming.owner], incoming.combine),
        (outgoing, whole.outputs, np.zeros(len(outgoing.owner)), whole.readout @ outgoing.combine),
    ):
        affine = copies is incoming  # the second layer's rows have no constant
        gates, values = (rows if affine else np.pad(rows, ((0, 0), (0, 1))) for rows in (copies.gates, copies.values))
        asks = np.pad(np.tile(branch, (len(values), 1)), ((0, 0), (values.shape[1] - 1, 0)))
        resting = products.linear[copies.owner]
        gates = np.where(resting[:, None], 0.0, gates)
        layers.append(_block(values, gates, lambda_, asks, out / far, resting, envelope, width))
    model = Stack(
        Linear(np.eye(width, whole.d), np.zeros(width)),
        tuple(layers),
        Linear(np.eye(len(whole.readout), width), np.zeros(len(whole.readout))),
    )
    relative = error(scheme, envelope.worst) + envelope.dot(len(whole.lambda_)) + envelope.dot(len(outgoing.combine))
    return Lowered(model, relative, whole.output_bounds)


register_target(
    "griffin",
    attention={1: attention_to_griffin},
    gated={2: to_griffin},
    tolerances={1: 1e-6},
    why_not_fewer="the branch reads the input and not the state, so two states cannot be multiplied in one layer",
    source="docs/theory.md",
    paper=(None, None),
)
