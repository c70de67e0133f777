"""Attention → Mamba in one layer, gated RNN → Mamba in two; equal in exact arithmetic.

Every activation of Mamba has an odd part that is the identity, exactly:

    SiLU(z) − SiLU(−z) = z,     softplus(z) − softplus(−z) = z

so a pair of channels hands on any linear function of the input, through the convolution's SiLU, the step Δ, or the
gate. A layer multiplies four of them: channel c adds Δ_c u_c B_n to its state n, and is read as SiLU(z_c) Σ_n C_n h_cn.
B and C are the same for all channels; Δ, u, z and the decays A are not.

    one head         u = ±x, B = keys, C = queries, A the decay; d_v rows in the readout          2 d · d_k numbers
    several heads    B = C = 1: Δ = ±k, u = ±v, z = ±q multiply what each product needs            8 a product
                     (mamba_sparse.py has the same without writing the projections out)
    …that decay      Δ is not free. B, C hold the keys and queries of all heads, and A which of them a channel
                     remembers; what it adds of the others at this very step cancels, and the products of this step
                     come from channels with Δ = ±k that remember nothing
    gated RNN        the same for h = λ h + (a·x)(b·x); a second layer without memory multiplies states
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import Factors
from underhood.algebra.subspaces import factor, row_space
from underhood.architectures.gated_rnn.cell import GatedRNN, nu_of
from underhood.architectures.mamba.lowering_parts import (
    AT_ONCE,
    MEMORY,
    OFF,
    ONE,
    STEP_BOUND,
    Channels,
    channels_of,
    constant,
    layer_of,
    outputs_of,
    readers,
    signed,
    stack,
    with_one,
)
from underhood.architectures.mamba.lowering_sparse import to_sparse_mamba, would_be_large
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope, positive, power_of_two
from underhood.compiler.forms import EPS, KeyValueForm, deviation, factor_deviation, heads_of, rank_revealed
from underhood.compiler.products import gated_products
from underhood.compiler.rounding import Arithmetic, Signal
from underhood.compiler.targets import ROUNDING_ONLY, Lowered, Way, register_target
from underhood.layers.linear import dense


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
    channels_read = readers(form.d + 1, len(form.readout), states)
    layer = layer_of(Channels.join(channels_read, channels), keys, queries, max(form.d + 1, len(form.readout)))
    model = stack((layer,), np.eye(form.d), np.eye(len(form.readout)))
    arithmetic = Arithmetic(envelope)
    x = arithmetic.with_one(arithmetic.inputs(form.d))
    errors = outputs_of(channels, keys, queries, x, arithmetic).error + deviation(form, source, envelope)
    return Lowered(model, errors, _output_bounds(form, envelope))


def _one_head(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float, envelope: Envelope) -> Lowered:
    """u = ±x, B and C the keys and queries; in the coordinates of what the head reads of x."""
    source = w_value, w_key, w_query
    rows = row_space(np.concatenate(source))
    rows = rows if len(rows) else np.zeros((1, w_value.shape[1]))
    columns, asks = factor(w_key.T @ w_query)
    if 0 < len(columns) < len(w_key):
        w_key, w_query = columns, asks
    d = len(rows)
    keys, queries = (with_one(w @ rows.T) for w in (w_key, w_query))
    (values,), out = signed((with_one(np.eye(d)),), np.eye(d))
    # e^{ΔA} with Δ = ONE.
    a_log = np.full((1, len(keys)), nu_of(np.float64(decay)) - np.log(ONE) if 0 < decay < 1 else _ends(decay))
    channels = channels_of(values, out, a_log)
    model = stack((layer_of(channels, keys, queries, d + 1),), rows, w_value @ rows.T)
    steps, cube = envelope.steps(np.array([decay])), envelope.input_bound**3
    bounds = steps * envelope.linear(w_value) * (envelope.linear(w_key) @ envelope.linear(w_query))
    arithmetic = Arithmetic(envelope)
    inside = arithmetic.with_one(arithmetic.linear(rows, arithmetic.inputs(rows.shape[1])))
    read = outputs_of(channels, keys, queries, inside, arithmetic)
    errors = arithmetic.linear(w_value @ rows.T, read).error
    return Lowered(model, errors + cube * steps * _left_out(source, rows, keys, queries), bounds)


def _left_out(
    source: tuple[np.ndarray, ...], rows: np.ndarray, keys: np.ndarray, queries: np.ndarray
) -> Float[np.ndarray, " d_o"]:
    """Σ |T̂ − T| of a head in other coordinates; nothing where they are x itself and the weights are copied."""
    w_value, w_key, w_query = source
    keys, queries = keys[:, :-1], queries[:, :-1]
    if np.array_equal(rows, np.eye(rows.shape[1])) and np.array_equal(keys, w_key) and np.array_equal(queries, w_query):
        return np.zeros(len(w_value))
    columns, asked = keys @ rows, queries @ rows
    left = factor_deviation(Factors(w_value @ rows.T, rows, columns, asked), w_value, w_key, w_query)
    # columns and asked are themselves added up in float64.
    far = (4 + len(rows)) * EPS * np.sum(np.abs(rows), axis=1)
    made = (np.abs(keys) @ far) @ np.abs(asked).sum(axis=1) + (np.abs(queries) @ far) @ np.abs(columns).sum(axis=1)
    return left + np.abs(w_value).sum(axis=1) * made


def _ends(decay: float) -> float:
    return MEMORY if decay == 1 else AT_ONCE


def _products(form: KeyValueForm, envelope: Envelope, states: int, *, memory: bool) -> Channels:
    """(V x)(K x)(Q x) of every product, Δ = ±k, u = ±v, z = ±q, summed over time or not."""
    product, cell = np.nonzero(form.reads)
    asked = (form.asks @ form.queries)[product]
    scale = power_of_two(STEP_BOUND / positive(envelope.linear(form.keys)))[cell]
    rows = (form.keys[cell] * scale[:, None], form.values[cell], asked)
    out = form.readout[:, product] * (form.reads[product, cell] / scale)[None]
    (steps, values, gates), out = signed(tuple(map(with_one, rows)), out)
    return channels_of(values, out, np.full((1, states), MEMORY if memory else AT_ONCE), steps=steps, gates=gates)


def _decaying(form: KeyValueForm, envelope: Envelope) -> tuple[Channels, np.ndarray, np.ndarray]:
    """States: the keys and queries of all products that differ; their negatives, remembered by none; and 1·1.

    So Σ_n C_n B_n = 1 at any step: a channel reads what it remembers, from the steps before, and Δ u. D takes the
    latter away, and `_products` adds what this step gives.
    """
    product, cell = np.nonzero(form.reads)
    asked = (form.asks @ form.queries)[product]
    # Keys and queries of a size near the constant's: what has to cancel is then no larger than what is left.
    of_key, of_query = (power_of_two(1 / positive(envelope.linear(rows))) for rows in (form.keys[cell], asked))
    brought = np.hstack([form.keys[cell] * of_key[:, None], asked * of_query[:, None]])
    pairs, pair = np.unique(brought, axis=0, return_inverse=True)
    pair = pair.ravel()
    keys, queries, fixed = pairs[:, : form.d], pairs[:, form.d :], np.eye(form.d + 1)[-1:]
    columns = form.readout[:, product] / (of_key * of_query)
    states = 2 * len(pairs) + 1
    # Channels: values and decays that differ; each remembers the pairs that its products have.
    owners, owner = np.unique(
        np.column_stack([form.values[cell], form.decay[cell], columns.T]), axis=0, return_inverse=True
    )
    owner = owner.ravel()
    a_log = np.full((len(owners), states), AT_ONCE)
    a_log[owner, pair] = np.where(
        form.decay[cell] == 1, MEMORY, np.where(form.decay[cell] == 0, AT_ONCE, nu_of(form.decay[cell]) - np.log(ONE))
    )
    (values,), out = signed((with_one(owners[:, : form.d]),), owners[:, form.d + 1 :].T)
    remember = channels_of(values, out, np.tile(a_log, (2, 1)), skip=-ONE)
    at_once = _products(form, envelope, states, memory=False)
    return (
        Channels.join(remember, at_once),
        np.concatenate([with_one(keys), -with_one(keys), fixed]),
        np.concatenate([with_one(queries), with_one(queries), fixed]),
    )


def _output_bounds(form: KeyValueForm, envelope: Envelope) -> np.ndarray:
    memory = envelope.linear(form.values) * envelope.linear(form.keys) * envelope.steps(form.decay)
    return np.abs(form.readout) @ ((np.abs(form.reads) @ memory) * envelope.linear(form.asks @ form.queries))


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
    (values,), out = signed((a[remembered],), np.eye(hidden)[:, remembered])
    memory = channels_of(values, out, np.tile(a_log, (2, 1)))
    # What this step adds: b_m itself where nothing is remembered, and −Σ_{n≠m} b_n elsewhere.
    now = np.where(lambda_[:, None] > 0, b - keys.sum(axis=0), b)
    first = Channels.join(readers(inputs, hidden, states), memory, _at_once(a, now, np.eye(hidden), states))
    ones = np.tile(constant(1.0, inputs), (states, 1))
    c, e = (np.pad(rows, ((0, 0), (0, width - hidden))) for rows in (c, e))
    second = _at_once(c, e, readout, 1)
    nothing = np.zeros((1, width))
    layers = (layer_of(first, keys, ones, width), layer_of(second, nothing, nothing, width))
    model = stack(layers, np.eye(inputs - 1), np.eye(len(readout)))
    arithmetic = Arithmetic(envelope)
    x = arithmetic.with_one(arithmetic.inputs(inputs - 1))
    written = outputs_of(Channels.join(memory, _at_once(a, now, np.eye(hidden), states)), keys, ones, x, arithmetic)
    written = written.known(whole.state_bounds)
    below = Signal(np.zeros(width), np.zeros(width))
    below.size[:hidden], below.error[:hidden] = written.size, written.error
    errors = outputs_of(second, nothing, nothing, below, arithmetic).error
    return Lowered(model, errors, whole.output_bounds)


def _at_once(first: np.ndarray, other: np.ndarray, out: np.ndarray, states: int) -> Channels:
    """(first·x)(other·x) of this step as D u SiLU(z), Δ = 0."""
    (values, gates), out = signed((first, other), out)
    off = np.zeros_like(values)
    off[:, -1] = OFF
    return channels_of(values, out, np.zeros((1, states)), steps=off, gates=gates, skip=1.0)


register_target(
    "mamba",
    attention={
        1: Way(
            attention_to_mamba,
            sparse=to_sparse_mamba,
            sparse_cost="compile mamba, sparse",
            is_large=would_be_large,
        )
    },
    gated={2: Way(to_mamba)},
    tolerances=ROUNDING_ONLY,
    why_not_fewer="no construction with one layer is known that multiplies two states to rounding",
    source="docs/theory.md",
    paper=(None, None),
)
