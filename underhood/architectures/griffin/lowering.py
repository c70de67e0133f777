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
from underhood.compiler.decays import logit
from underhood.compiler.envelope import Envelope, Typical, positive
from underhood.compiler.forms import KeyValueForm, rank_revealed
from underhood.compiler.linearise import Linearisation, best_scale, centred, paired
from underhood.compiler.products import combined, copy_products, gated_products, local
from underhood.compiler.rounding import ELEMENTARY, WEIGHT, Arithmetic, Signal
from underhood.compiler.targets import Lowered, Way, register_target
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
    return logit(gate)


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
    first = np.where(resting, logit(scale / 2), _first_bias(scale))
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
    known, where = np.unique(plain, axis=0, return_index=True)
    solved = np.linalg.lstsq(known.T, gates.T, rcond=None)[0]
    largest = np.max(np.abs(gates), initial=0.0)
    if np.max(np.abs(solved.T @ known - gates), initial=0.0) <= 1e-14 * largest and np.linalg.cond(known) < 1e3:
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


def _error(scheme: Linearisation, rounding: Typical, envelope: Envelope, far: float) -> float:
    """Of a product, against its bound: linearisation and rounding of both pairs, and what a memory loses.

    Gates are around ½ at all inputs but the first: what they are off by there is chosen against, not the most anywhere.
    """
    grown = (rounding.summing + 3 * rounding.step) * scheme.noise
    truncation = centred(scheme.order, scheme.scale).truncation
    return (2 * far + 1) * (truncation + grown) + 0.5 * LOSS[envelope.dtype]


def _copies(
    arithmetic: Arithmetic,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    lambda_: np.ndarray,
    x: Signal,
    largest: float,
    asked: np.ndarray,
) -> Signal:
    """h = λ h + σ(gates·x̃)(values·x̃) of each channel, read as GELU(asks·x̃) h, and what these operations round.

    `asked` has the sizes of the branches. The gate reads u, which is made of x by rows of its own or by the values'.
    """
    values, gates, asks = rows
    x = local(x)
    u = local(arithmetic.linear(values, x))  # its error is that of the product: `_projected`
    carried, reads = _carriers(values, gates[:, :-1])
    read = arithmetic.linear(np.concatenate([values, carried]), x)
    argument = arithmetic.linear(reads, read, np.full(len(gates), largest))
    lost = np.abs(np.concatenate([values, carried])[:, :-1].T @ reads.T - gates[:, :-1].T)  # of a basis that was found
    argument = Signal(
        argument.size, argument.error + lost.T @ x.reach[:-1] + 2 * arithmetic.unit * np.abs(gates[:, -1])
    )
    made = arithmetic.times(arithmetic.sigma(argument), u)
    made = Signal(made.size, made.error + 2 * WEIGHT * arithmetic.unit * made.reach)
    # At the first input σ(β ± …) in place of m σ(± …).
    scale = decays(lambda_, arithmetic.envelope)[1]
    first = (2 * ELEMENTARY + 8 + 4 * np.abs(_first_bias(np.minimum(scale, 1 - 2.0**-40)))) * arithmetic.unit
    states = arithmetic.total(made, _kept(lambda_, arithmetic.envelope), alike=True)
    states = Signal(states.size, states.error + first * made.reach)
    branch = arithmetic.linear(asks, x, asked)
    return arithmetic.times(arithmetic.activation(branch, asked, 1.13), states)


def _projected(arithmetic: Arithmetic, rows: np.ndarray) -> float:
    """Of a value's own product of matrices, which equal rows share."""
    return float(arithmetic.gamma(np.max(np.count_nonzero(rows, axis=1), initial=0) + WEIGHT))


def _kept(lambda_: np.ndarray, envelope: Envelope) -> np.ndarray:
    return np.where(lambda_ == 1, 1 - LOSS[envelope.dtype] / 2, lambda_)


def _shared(arithmetic: Arithmetic, lambda_: np.ndarray) -> np.ndarray:
    """What all copies of a product share, as a part of it: a as it is computed, m = √(1 − a²) against 1/m in the
    readout, and what Σ_s p_s loses by a = 1 − ℓ/2 in place of 1, at most a part ℓ T/2.
    """
    envelope = arithmetic.envelope
    param = np.where(lambda_ == 0, 0.0, np.abs(decays(lambda_, envelope)[0]))
    scaling = (3 * ELEMENTARY + WEIGHT + param) * arithmetic.unit
    lost = np.where(lambda_ == 1, 0.5 * LOSS[envelope.dtype] * envelope.horizon, 0.0)
    return np.expm1(scaling + lost + arithmetic.decaying(_kept(lambda_, envelope)))


def attention_to_griffin(form: KeyValueForm, envelope: Envelope, order: int) -> Lowered:
    """One layer: the products of each value with its keys, and a pair for their sum."""
    far = FAR[envelope.dtype]
    scheme = best_scale(
        lambda scale: paired(order, scale), lambda scheme: _error(scheme, envelope.typical, envelope, far)
    )
    values, gates, asks, decay, columns = _grouped(form, envelope, far)
    copies = scheme.copies
    copied = np.tile(scheme.nodes, len(values))[:, None] * np.repeat(gates, copies, axis=0)
    out = np.repeat(columns, copies, axis=1) * np.tile(scheme.weights, len(values))
    width = max(form.d, len(form.readout))
    lambda_, resting = np.repeat(decay, copies), np.zeros(copies * len(values), bool)
    repeated, asking = (np.repeat(each, copies, axis=0) for each in (values, asks))
    cell = _block(repeated, copied, lambda_, asking, out, resting, envelope, width)
    embedding = Linear(np.eye(width, form.d), np.zeros(width))
    model = Stack(embedding, (cell,), Linear(np.eye(len(form.readout), width), np.zeros(len(form.readout))))
    memory = envelope.linear(form.values) * envelope.linear(form.keys) * envelope.steps(form.decay)
    bounds = np.abs(form.readout) @ (memory * envelope.linear(form.queries)[np.nonzero(form.asks)[1]])
    arithmetic = Arithmetic(envelope)
    x = arithmetic.with_one(arithmetic.inputs(form.d))
    made = _copies(arithmetic, (repeated, copied, asking), lambda_, x, order * scheme.scale, envelope.affine(asking))
    errors = arithmetic.linear(out, made).error
    # Both the products and what b adds to them are linearised, against their own sizes; b itself cancels.
    sizes = envelope.affine(values) * envelope.steps(decay) * envelope.affine(asks)
    errors = errors + scheme.truncation * (np.abs(columns) @ sizes)
    shared = float(np.expm1(3 * arithmetic.cast)) + np.max(_shared(arithmetic, form.decay), initial=0.0)
    shared = shared + 2 * _projected(arithmetic, values)
    return Lowered(model, errors + shared * (1 + scheme.truncation) * bounds, bounds)


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
    scheme = best_scale(
        lambda scale: paired(order, scale), lambda scheme: 2 * _error(scheme, envelope.typical, envelope, far=0.0)
    )
    incoming, outgoing = copy_products(whole.inputs, scheme), copy_products(whole.outputs, scheme)
    width = max(whole.d, len(whole.lambda_), len(whole.readout))
    arithmetic, largest = Arithmetic(envelope), 2 * order * scheme.scale
    below, layers = arithmetic.with_one(arithmetic.inputs(whole.d)), []
    for copies, products, lambda_, matrix, out in (
        (incoming, whole.inputs, whole.lambda_[incoming.owner], incoming.combine, None),
        (outgoing, whole.outputs, np.zeros(len(outgoing.owner)), whole.readout @ outgoing.combine, whole.readout),
    ):
        affine = copies is incoming  # the second layer's rows have no constant
        if not affine:
            below = arithmetic.with_one(below)
        gates, values = (rows if affine else np.pad(rows, ((0, 0), (0, 1))) for rows in (copies.gates, copies.values))
        asks = np.pad(np.full((len(values), 1), far), ((0, 0), (values.shape[1] - 1, 0)))
        resting = products.linear[copies.owner]
        gates = np.where(resting[:, None], 0.0, gates)
        layers.append(_block(values, gates, lambda_, asks, matrix / far, resting, envelope, width))
        branches = np.full(len(values), far)
        made = _copies(arithmetic, (values, gates, asks), lambda_, below, largest, branches)
        sides = (products.gates, products.values)
        shared = [np.abs(rows) @ below.error[: rows.shape[1]] for rows in sides]
        shared[1] = shared[1] + _projected(arithmetic, products.values) * products.value_bounds
        steps = envelope.steps(whole.lambda_) if affine else 1.0
        below = combined(arithmetic, products, scheme, made, matrix / far, *shared, out, steps)
        if affine:
            below = below.known(whole.state_bounds)
            below = arithmetic.again(Signal(below.size, below.error + _shared(arithmetic, whole.lambda_) * below.reach))
    model = Stack(
        Linear(np.eye(width, whole.d), np.zeros(width)),
        tuple(layers),
        Linear(np.eye(len(whole.readout), width), np.zeros(len(whole.readout))),
    )
    errors = below.error + _shared(arithmetic, np.zeros(1)) * below.reach
    return Lowered(model, errors, whole.output_bounds)


register_target(
    "griffin",
    attention={1: Way(attention_to_griffin, rank_revealed)},
    gated={2: Way(to_griffin)},
    tolerances={1: 1e-6},
    why_not_fewer="no construction with one layer is known that multiplies two states to within the tolerance",
    source="docs/theory.md",
    paper=(None, None),
)
