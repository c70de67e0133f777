"""Attention as key-values, in every shape that a construction asks for.

    H_t = decay ⊙ H_{t-1} + (V x_t) ⊙ (K x_t);      y_t = D [(A H_t) ⊙ (B Q x_t)]

`figure_1` writes it as the paper does, `compact` as Section 2.2 does, and `minimal` in the fewest neurons: a head alone
takes r·s − o(o−1)/2 memories and as many products (`algebra.key_values`). Several heads of one decay may share them:
their memories span one space of quadratic forms, their queries the joint row space of all W_KᵀW_Q, and never more than
(rank of outputs) × (queries) products are needed in all.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from underhood.algebra.key_values import Factors, KeyValueForm, smallest_form, smallest_head, stack_forms
from underhood.algebra.quadratic import fold, pair_indices
from underhood.algebra.subspaces import factor, intersect, row_space
from underhood.architectures.gated_rnn.cell import GatedRNN, Gating
from underhood.attention.linear import LinearAttention
from underhood.compiler.envelope import Envelope
from underhood.compiler.settings import SETTINGS
from underhood.core.errors import UnderhoodError
from underhood.core.memory import NotEnoughMemory

EPS = float(np.finfo(np.float64).eps) / 2
MOST_EXTENDED = 96  # inputs up to which products of matrices in extended precision take less than 0.1 s
MOST_ENTRIES = 2**22  # of a tensor that is compared at once


def figure_1(attention: LinearAttention) -> KeyValueForm:
    """Figure 1: a memory for each entry of v kᵀ and a product with its query: d_v·d_k + d_k neurons a head."""
    return stack_forms([_figure_1_head(*head) for head in heads_of(attention)])


def heads_of(attention: LinearAttention) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """(W_V, W_K, W_Q, decay) of each head, in float64."""
    weights = (np.asarray(w, np.float64) for w in (attention.w_value, attention.w_key, attention.w_query))
    decay = np.ones(attention.heads) if attention.decay is None else np.asarray(attention.decay, np.float64)
    return list(zip(*weights, decay, strict=True))


def _figure_1_head(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float) -> KeyValueForm:
    d_value, d_key = len(w_value), len(w_key)
    return KeyValueForm(
        values=np.repeat(w_value, d_key, axis=0),
        keys=np.tile(w_key, (d_value, 1)),
        decay=np.full(d_value * d_key, decay),
        queries=w_query,
        reads=np.eye(d_value * d_key),
        asks=np.tile(np.eye(d_key), (d_value, 1)),
        readout=np.repeat(np.eye(d_value), d_key, axis=1),
        factors=(None,),
    )


def compact(attention: LinearAttention) -> KeyValueForm:
    """Section 2.2: with keys W_V and queries W_V^{-T} W_Kᵀ W_Q, v kᵀ is symmetric: d(d+1)/2 + d neurons a head."""
    return stack_forms([_compact_head(*head, basis=_invertible(head[0])) for head in heads_of(attention)])


def compact_coordinates(attention: LinearAttention) -> KeyValueForm:
    """The same neurons, with x itself as keys and values, queries W_KᵀW_Q and W_V in the readout.

    No inverse is taken: where W_V is nearly singular, W_V^{-T} is large and what it adds has to cancel again.
    """
    for w_value, *_ in heads_of(attention):
        _invertible(w_value)
    return stack_forms([_compact_head(*head, basis=np.eye(attention.d)) for head in heads_of(attention)])


def _invertible(w_value: np.ndarray) -> np.ndarray:
    d_value, d = w_value.shape
    rank = np.linalg.matrix_rank(w_value)
    if d_value != d or rank < d:
        shape = f"rank {rank} for d={d}" if d_value == d else f"shape {w_value.shape}"
        remedy = "Use `to='gated-rnn-minimal'`, which takes any."
        raise UnderhoodError("compact expects an invertible w_value", shape, remedy)
    return w_value


def _compact_head(
    w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float, basis: np.ndarray
) -> KeyValueForm:
    """y = (W_V B⁻¹) S (B^{-T} W_KᵀW_Q x) with the symmetric S = Σ (B x)(B x)ᵀ, for any invertible B."""
    d = len(basis)
    upper = pair_indices(d)
    # memory_of[i, j]: which neuron holds entry (i, j), the same for (j, i).
    memory_of = np.zeros((d, d), int)
    memory_of[upper] = np.arange(len(upper[0]))
    memory_of = np.maximum(memory_of, memory_of.T)
    outputs = np.eye(d) if basis is w_value else np.linalg.solve(basis.T, w_value.T).T
    asked = np.linalg.solve(basis.T, w_key.T @ w_query)
    return KeyValueForm(
        values=basis[upper[0]],
        keys=basis[upper[1]],
        decay=np.full(len(upper[0]), decay),
        queries=asked,
        reads=np.eye(len(upper[0]))[memory_of.ravel()],
        asks=np.tile(np.eye(d), (d, 1)),
        readout=np.repeat(outputs, d, axis=1),
        factors=(Factors(outputs, basis, basis, asked),),
    )


def rank_revealed(attention: LinearAttention) -> KeyValueForm:
    """Figure 1 with W_V, W_K and W_Q cut down to the ranks r of W_V and s of W_KᵀW_Q: r·s products a head.

    Every product reads one memory, as a single LSTM layer needs it. Full-rank heads stay as they are: a change of
    basis would only cost accuracy.
    """
    return stack_forms([_rank_revealed_head(*head) for head in heads_of(attention)])


def _rank_revealed_head(w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray, decay: float) -> KeyValueForm:
    rows = row_space(w_value)
    columns, queries = factor(w_key.T @ w_query)
    if len(rows) * len(columns) == 0:  # a head that is zero keeps one silent product: cells have a neuron or more
        rows, columns, queries = np.zeros((3, 1, w_value.shape[1]))
    if len(rows) * len(columns) >= len(w_value) * len(w_key):
        return _figure_1_head(w_value, w_key, w_query, decay)
    form, outs = _figure_1_head(rows, columns, queries, decay), w_value @ rows.T
    return dataclasses.replace(form, readout=outs @ form.readout, factors=(Factors(outs, rows, columns, queries),))


def coordinates(attention: LinearAttention) -> KeyValueForm:
    """The attention's own tensor: y_i = Σ_{a≤b} S_ab (T_i[a,b]·x_t) with S_ab = Σ_s x_a x_b, d_v·d(d+1)/2 products.

    T_i = Σ_heads sym_ab(W_V[i,a] M[b,c]), M = W_KᵀW_Q: what heads, and keys and queries, take away from each other is
    taken away in the weights, before anything is linearised. More products than `rank_revealed`, but hardly larger
    than their sum: at d=2, seed 3, 7 times the largest output instead of 27.
    """
    heads = heads_of(attention)
    decays = np.array([decay for *_, decay in heads])
    return stack_forms([_coordinate_form([h for h in heads if h[3] == decay]) for decay in np.unique(decays)])


def _coordinate_form(heads: list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]) -> KeyValueForm:
    """Heads of one decay."""
    d_value, d = heads[0][0].shape
    first, second = pair_indices(d)
    pairs = len(first)
    if 8 * (d_value * pairs) ** 2 > SETTINGS.most_bytes:
        raise NotEnoughMemory(f"{d_value * pairs} products of coordinates are more than this form is made for")
    folded = sum(fold(np.einsum("ia,bc->iabc", w_value, w_key.T @ w_query)) for w_value, w_key, w_query, _ in heads)
    return KeyValueForm(
        values=np.eye(d)[first],
        keys=np.eye(d)[second],
        decay=np.full(pairs, heads[0][3]),
        queries=np.reshape(folded, (-1, d)),
        reads=np.tile(np.eye(pairs), (d_value, 1)),
        asks=np.eye(d_value * pairs),
        readout=np.repeat(np.eye(d_value), pairs, axis=1),
    )


def minimal(attention: LinearAttention) -> KeyValueForm:
    """The smaller of: each head on its own, and all heads of one decay through shared memories."""
    return smallest_form(
        [smallest_head(w_value, w_key.T @ w_query, decay) for w_value, w_key, w_query, decay in heads_of(attention)]
    )


def memory_count(attention: LinearAttention) -> list[tuple[int, int]]:
    """(memory, queries) of each head after the formula r·s − o(o−1)/2 and s."""
    counts = []
    for w_value, w_key, w_query, _ in heads_of(attention):
        rows, columns = row_space(w_value), factor(w_key.T @ w_query)[0]
        r, s = len(rows), len(columns)
        o = len(intersect(rows, columns)[0])
        counts.append((r * s - o * (o - 1) // 2, s))
    return counts


def economical(attention: LinearAttention) -> KeyValueForm:
    """Figure 1 cut to the ranks; heads share memories where that halves it: a GRU layer costs neurons squared."""
    apart = rank_revealed(attention)
    if attention.heads == 1:
        return apart
    together = minimal(attention)
    return together if 0 < together.products * 2 <= apart.products else apart


def to_gated_rnn(form: KeyValueForm) -> GatedRNN:
    """Memory neurons (λ = decay) first, then query neurons (λ = 0), which read x times the constant 1."""
    weights = form.gated
    return GatedRNN.from_lambda(
        Gating(weights.w_m, weights.w_x), weights.lambda_, Gating(weights.left, weights.right), weights.readout
    )


def deviation(form: KeyValueForm, attention: LinearAttention, envelope: Envelope) -> Float[np.ndarray, " d_o"]:
    """|y_form − y_attention| of each output in exact arithmetic: bases, ranks and inverses are found in float64.

    Both are Σ_s λ^{t-s} T_i[a,b,c] x_s,a x_s,b x_t,c, so the difference is at most r³ Σ_s λ^s Σ_abc |T̂_i − T_i|.
    """
    heads = heads_of(attention)
    scale = envelope.input_bound**3
    if form.factors is None:
        return scale * _tensor_deviation(form, attention, envelope)
    parts = zip(form.factors, heads, strict=True)
    each = (envelope.steps(head[3]) * factor_deviation(factors, *head[:3]) for factors, head in parts if factors)
    return scale * sum(each, start=np.zeros(attention.d_out))


def factor_deviation(
    factors: Factors, w_value: np.ndarray, w_key: np.ndarray, w_query: np.ndarray
) -> Float[np.ndarray, " d_o"]:
    """Σ |ΔW_V| |M̂| + |W_V| |ΔM|, M = W_KᵀW_Q, in extended precision while that is quick; its rounding is added."""
    dtype = np.longdouble if w_value.shape[1] <= MOST_EXTENDED else np.float64
    outs, rows, columns, asked = (matrix.astype(dtype) for matrix in factors)
    w_value, w_key, w_query = (matrix.astype(dtype) for matrix in (w_value, w_key, w_query))
    rounding = (4 + len(rows) + len(columns) + len(w_key)) * float(np.finfo(dtype).eps)
    values, products = np.abs(outs) @ np.abs(rows), np.abs(columns).T @ np.abs(asked)
    of_values = np.abs(w_value - outs @ rows) + rounding * (values + np.abs(w_value))
    asked_for = np.abs(w_key).T @ np.abs(w_query)
    of_products = np.abs(w_key.T @ w_query - columns.T @ asked) + rounding * (products + asked_for)
    total = of_values.sum(axis=1) * products.sum() + np.abs(w_value).sum(axis=1) * of_products.sum()
    return total.astype(np.float64) * (1 + EPS)


def _tensor_deviation(form: KeyValueForm, attention: LinearAttention, envelope: Envelope) -> Float[np.ndarray, " d_o"]:
    """For forms that heads share: Σ |T̂_i − T_i| itself, some columns at a time, for the heads of each decay."""
    heads, total = heads_of(attention), np.zeros(attention.d_out)
    first, second = pair_indices(form.d)
    width = max(1, MOST_ENTRIES // len(first))
    for decay in np.unique([*form.decay, *(head[3] for head in heads)]):
        mine, steps = form.decay == decay, envelope.steps(decay)
        forms = form.forms[mine].T
        sizes = np.abs(form.values[mine]).sum(axis=1) * np.abs(form.keys[mine]).sum(axis=1)
        group = [(w_value, w_key.T @ w_query, w_key, w_query) for w_value, w_key, w_query, its in heads if its == decay]
        far = 16 + form.memory + form.products + sum(len(head[2]) for head in group)
        rounding = far * EPS / (1 - far * EPS)
        for i, outs in enumerate(form.readout):
            used = np.flatnonzero(outs)
            reads, asked = outs[used, None] * form.reads[np.ix_(used, mine)], form.asks[used] @ form.queries
            across = np.abs(form.asks[used]) @ np.abs(form.queries).sum(axis=1)
            total[i] += steps * rounding * (np.abs(reads).T @ across) @ sizes
            for w_value, _, w_key, w_query in group:
                scores = np.abs(w_key).sum(axis=1) @ np.abs(w_query).sum(axis=1)
                total[i] += steps * rounding * np.abs(w_value[i]).sum() * scores
            for start in range(0, form.d, width):
                some = slice(start, start + width)
                tensor = forms @ (reads.T @ asked[:, some])
                for w_value, products, *_ in group:
                    value, products = w_value[i], products[:, some]
                    tensor = tensor - value[first, None] * products[second]
                    tensor -= (first != second)[:, None] * value[second, None] * products[first]
                total[i] += steps * np.abs(tensor).sum()
    return total
