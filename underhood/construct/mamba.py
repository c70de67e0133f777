"""Attention → Mamba in one layer, gated RNN → Mamba in two; equal in exact arithmetic.

Every activation of Mamba has an odd part that is the identity, exactly:

    SiLU(z) − SiLU(−z) = z,     softplus(z) − softplus(−z) = z

so a pair of channels hands on any linear function of the input, through the convolution's SiLU, the step Δ, or the
gate. A layer multiplies four of them: channel c adds Δ_c u_c B_n to its state n, and is read as SiLU(z_c) Σ_n C_n h_cn.
B and C are the same for all channels; Δ, u, z and the decays A are not.

    one head         u = ±x, B = keys, C = queries, A the decay; d_v rows in the readout          2 d · d_k numbers
    several heads    B = C = 1: Δ = ±k, u = ±v, z = ±q multiply what each product needs            8 a product
    …that decay      Δ is not free. B, C hold the keys and queries of all heads, and A which of them a channel
                     remembers; what it adds of the others at this very step cancels, and the products of this step
                     come from channels with Δ = ±k that remember nothing
    gated RNN        the same for h = λ h + (a·x)(b·x); a second layer without memory multiplies states
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

from underhood.algebra.subspaces import factor, row_space
from underhood.attention.linear import LinearAttention
from underhood.cells import Convolution, GatedRNN, Linear, Mamba, Stack
from underhood.cells.gated_rnn import nu_of
from underhood.cells.linear import dense
from underhood.construct.envelope import Envelope, positive, power_of_two
from underhood.construct.forms import KeyValueForm, heads_of, rank_revealed
from underhood.construct.lowered import Lowered
from underhood.construct.products import gated_products
from underhood.construct.targets import ROUNDING_ONLY, register_target

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


def _constant(value: float, inputs: int) -> np.ndarray:
    return np.append(np.zeros(inputs - 1), value)


def _channels(
    values: np.ndarray, out: np.ndarray, a_log: np.ndarray, *, steps=None, gates=None, skip: float = 0.0
) -> Channels:
    """A group of channels; Δ and the gate are `ONE` where none are given, and the output makes up for them."""
    count, inputs = values.shape
    out = out / ((ONE if steps is None else 1.0) * (ONE if gates is None else 1.0))
    one = np.tile(_constant(ONE, inputs), (count, 1))
    steps, gates = (one if rows is None else rows for rows in (steps, gates))
    return Channels(values, steps, gates, np.broadcast_to(a_log, (count, a_log.shape[-1])), np.full(count, skip), out)


def _silent(values: np.ndarray, outputs: int, states: int) -> Channels:
    """Channels that are there for W_x to read."""
    off = np.tile(_constant(OFF, values.shape[1]), (len(values), 1))
    return _channels(values, np.zeros((outputs, len(values))), np.zeros((1, states)), steps=off)


def _readers(inputs: int, outputs: int, states: int) -> Channels:
    """±x and the constant: out of them W_x makes any function of x̃."""
    rows = np.concatenate([np.eye(inputs)[:-1], -np.eye(inputs)[:-1], ONE * np.eye(inputs)[-1:]])
    return _silent(rows, outputs, states)


def _signed(rows: tuple[np.ndarray, ...], out: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Every product with every choice of signs, in the rows and in the column of the output."""
    signs = np.array(list(itertools.product(SIGNS, repeat=len(rows))))
    signed = [(row[None] * signs[:, i, None, None]).reshape(-1, row.shape[1]) for i, row in enumerate(rows)]
    return signed, np.concatenate([out * np.prod(sign) for sign in signs], axis=1)


def _layer(channels: Channels, keys: np.ndarray, queries: np.ndarray, width: int) -> Mamba:
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


def _with_one(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, 1)))


def _stack(layers: tuple[Mamba, ...], rows: np.ndarray, readout: np.ndarray) -> Stack:
    """Embedding (rows x, 1), layers of one width, readout."""
    width = layers[0].d
    embedding, bias = np.zeros((width, rows.shape[1])), np.zeros(width)
    embedding[: len(rows)], bias[len(rows)] = rows, 1.0
    padded = np.zeros((len(readout), width))
    padded[:, : readout.shape[1]] = readout
    return Stack(Linear(embedding, bias), layers, Linear(padded, np.zeros(len(readout))))


def attention_to_mamba(source: LinearAttention, envelope: Envelope, order: int) -> Lowered:
    """One layer, by the smallest of the three ways that holds the source."""
    heads = heads_of(source)
    if len(heads) == 1:
        return _one_head(*heads[0], envelope)
    form = rank_revealed(source)
    if np.all(form.decay == 1):
        channels, states = _products(form, envelope, 1, memory=True), 1
        keys = queries = np.eye(form.d + 1)[-1:]
    else:
        channels, keys, queries = _decaying(form, envelope)
        states = len(keys)
    readers = _readers(form.d + 1, len(form.readout), states)
    layer = _layer(Channels.join(readers, channels), keys, queries, max(form.d + 1, len(form.readout)))
    model = _stack((layer,), np.eye(form.d), np.eye(len(form.readout)))
    terms = int(np.max(np.count_nonzero(channels.out, axis=1)))
    return Lowered(model, _rounding(envelope, terms), _output_bounds(form, envelope))


def _one_head(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float, envelope: Envelope) -> Lowered:
    """u = ±x, B and C the keys and queries; in the coordinates of what the head reads of x."""
    rows = row_space(np.concatenate([w_value, w_key, w_query]))
    rows = rows if len(rows) else np.zeros((1, w_value.shape[1]))
    columns, asks = factor(w_key.T @ w_query)
    if 0 < len(columns) < len(w_key):
        w_key, w_query = columns, asks
    d = len(rows)
    keys, queries = (_with_one(w @ rows.T) for w in (w_key, w_query))
    (values,), out = _signed((_with_one(np.eye(d)),), np.eye(d))
    # e^{ΔA} with Δ = ONE.
    a_log = np.full((1, len(keys)), nu_of(np.float64(decay)) - np.log(ONE) if 0 < decay < 1 else _ends(decay))
    layer = _layer(_channels(values, out, a_log), keys, queries, d + 1)
    model = _stack((layer,), rows, w_value @ rows.T)
    bounds = envelope.steps(np.array([decay])) * envelope.linear(w_value)
    sizes = envelope.linear(w_key) @ envelope.linear(w_query)
    return Lowered(model, _rounding(envelope, 2 * d + len(keys)), bounds * sizes)


def _ends(decay: float) -> float:
    return MEMORY if decay == 1 else AT_ONCE


def _products(form: KeyValueForm, envelope: Envelope, states: int, *, memory: bool) -> Channels:
    """(V x)(K x)(Q x) of every product, Δ = ±k, u = ±v, z = ±q, summed over time or not."""
    product, cell = np.nonzero(form.reads)
    asked = (form.asks @ form.queries)[product]
    scale = power_of_two(STEP_BOUND / positive(envelope.linear(form.keys)))[cell]
    rows = (form.keys[cell] * scale[:, None], form.values[cell], asked)
    out = form.readout[:, product] * (form.reads[product, cell] / scale)[None]
    (steps, values, gates), out = _signed(tuple(map(_with_one, rows)), out)
    return _channels(values, out, np.full((1, states), MEMORY if memory else AT_ONCE), steps=steps, gates=gates)


def _decaying(form: KeyValueForm, envelope: Envelope) -> tuple[Channels, np.ndarray, np.ndarray]:
    """States: the keys and queries of all products that differ; their negatives, remembered by none; and 1·1.

    So Σ_n C_n B_n = 1 at any step: a channel reads what it remembers, from the steps before, and Δ u. D takes the
    latter away, and `_products` adds what this step gives.
    """
    product, cell = np.nonzero(form.reads)
    asked = (form.asks @ form.queries)[product]
    pairs, pair = np.unique(np.hstack([form.keys[cell], asked]), axis=0, return_inverse=True)
    keys, queries, one = pairs[:, : form.d], pairs[:, form.d :], np.eye(form.d + 1)[-1:]
    states = 2 * len(pairs) + 1
    # Channels: values and decays that differ; each remembers the pairs that its products have.
    owners, owner = np.unique(
        np.column_stack([form.values[cell], form.decay[cell], form.readout[:, product].T]), axis=0, return_inverse=True
    )
    a_log = np.full((len(owners), states), AT_ONCE)
    a_log[owner, pair] = np.where(
        form.decay[cell] == 1, MEMORY, np.where(form.decay[cell] == 0, AT_ONCE, nu_of(form.decay[cell]) - np.log(ONE))
    )
    (values,), out = _signed((_with_one(owners[:, : form.d]),), owners[:, form.d + 1 :].T)
    remember = _channels(values, out, np.tile(a_log, (2, 1)), skip=-ONE)
    at_once = _products(form, envelope, states, memory=False)
    return (
        Channels.join(remember, at_once),
        np.concatenate([_with_one(keys), -_with_one(keys), one]),
        np.concatenate([_with_one(queries), _with_one(queries), one]),
    )


def _output_bounds(form: KeyValueForm, envelope: Envelope) -> np.ndarray:
    memory = envelope.linear(form.values) * envelope.linear(form.keys) * envelope.steps(form.decay)
    return np.abs(form.readout) @ ((np.abs(form.reads) @ memory) * envelope.linear(form.asks @ form.queries))


def _rounding(envelope: Envelope, terms: int) -> float:
    """Sums over time, products, activations, and the sums of W_x and W_out."""
    return envelope.worst.summing + 8 * envelope.worst.step + envelope.dot(terms)


def to_mamba(source: GatedRNN, envelope: Envelope, order: int) -> Lowered:
    """Two layers: states h = λ h + (a·x̃)(b·x̃), and then products (c·h)(d·h), each of four channels without memory.

    The first works as heads that decay do. A channel u = a_m remembers the state B = b_m alone, and adds u Σ_n b_n of
    this step: channels without memory, D u SiLU(z), put this right.
    """
    whole = gated_products(source, envelope)
    gate_in, gate_out = source.input_gating, source.output_gating
    a, b, c, e, readout = (
        dense(matrix).astype(np.float64)
        for matrix in (gate_in.w_m, gate_in.w_x, gate_out.w_m, gate_out.w_x, source.readout)
    )
    hidden, inputs = a.shape
    lambda_ = np.asarray(source.lambda_, np.float64)
    remembered = np.flatnonzero(lambda_ > 0)
    width = max(inputs, hidden, len(readout))
    keys, states = (b[remembered], len(remembered)) if len(remembered) else (np.zeros((1, inputs)), 1)
    a_log = np.full((len(remembered), states), AT_ONCE)
    kept = lambda_[remembered]
    a_log[np.arange(len(kept)), np.arange(len(kept))] = np.where(kept == 1, MEMORY, nu_of(kept) - np.log(ONE))
    (values,), out = _signed((a[remembered],), np.eye(hidden)[:, remembered])
    memory = _channels(values, out, np.tile(a_log, (2, 1)))
    # What this step adds: b_m itself where nothing is remembered, and −Σ_{n≠m} b_n elsewhere.
    now = np.where(lambda_[:, None] > 0, b - keys.sum(axis=0), b)
    first = Channels.join(_readers(inputs, hidden, states), memory, _at_once(a, now, np.eye(hidden), states))
    ones = np.tile(_constant(1.0, inputs), (states, 1))
    c, e = (np.pad(rows, ((0, 0), (0, width - hidden))) for rows in (c, e))
    second = _at_once(c, e, readout, 1)
    nothing = np.zeros((1, width))
    layers = (_layer(first, keys, ones, width), _layer(second, nothing, nothing, width))
    model = _stack(layers, np.eye(inputs - 1), np.eye(len(readout)))
    relative = 2 * _rounding(envelope, 2 * inputs + hidden) + envelope.dot(2 * len(c))
    return Lowered(model, relative, whole.output_bounds)


def _at_once(one: np.ndarray, other: np.ndarray, out: np.ndarray, states: int) -> Channels:
    """(one·x)(other·x) of this step as D u SiLU(z), Δ = 0."""
    (values, gates), out = _signed((one, other), out)
    off = np.zeros_like(values)
    off[:, -1] = OFF
    return _channels(values, out, np.zeros((1, states)), steps=off, gates=gates, skip=1.0)


register_target(
    "mamba",
    attention={1: attention_to_mamba},
    gated={2: to_mamba},
    tolerances=ROUNDING_ONLY,
    why_not_fewer="the gate reads the input and not the state, so two states cannot be multiplied in one layer",
    source="docs/theory.md",
    paper=(None, None),
)
