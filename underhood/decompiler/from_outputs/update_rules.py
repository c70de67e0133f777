"""Two neighbours of linear attention, fitted by their own algebra: softmax attention and the delta rule.

    softmax     y_t = Σ_s softmax_s(x_sᵀ M x_t) V x_s          [a] ↦ V a, and log-odds of a over b are (a − b)ᵀ M b
    delta rule  S_t = S_{t-1} + (v_t − S_{t-1} k_t) k_tᵀ       [a, c] ↦ … + V a aᵀ(M c − G c (cᵀM c)), G = W_KᵀW_K

Each needs sequences of two inputs only, and is then run on longer ones.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from underhood.algebra.heads import fewest_heads, levenberg
from underhood.algebra.quadratic import Array, pair_indices
from underhood.algebra.statistics import r_squared
from underhood.decompiler.from_outputs.functions import Batched

SEQUENCES = 256
SMALL = 0.5  # size of the inputs on which the delta rule is tried
LEAST_WEIGHT = 1e-9  # of an input beside another: below, its logarithm is rounding


def softmax_r2(call: Batched, held: tuple[Array, Array], random: np.random.Generator) -> float:
    """R² of softmax attention with one head."""
    d = held[0].shape[2]
    pairs = random.standard_normal((SEQUENCES, 2, d))
    ys = call(pairs)
    values = np.linalg.lstsq(pairs[:, 0], ys[:, 0], rcond=None)[0]
    first, second = (pairs[:, i] @ values for i in (0, 1))
    apart = first - second
    share = np.sum((ys[:, 1] - second) * apart, axis=1) / np.sum(apart**2, axis=1)
    usable = (share > LEAST_WEIGHT) & (share < 1 - LEAST_WEIGHT)
    odds = np.log(share[usable] / (1 - share[usable]))
    differences = (pairs[:, 0] - pairs[:, 1])[usable]
    products = np.einsum("na,nb->nab", differences, pairs[usable, 1]).reshape(len(odds), -1)
    key_query = np.linalg.lstsq(products, odds, rcond=None)[0].reshape(d, d)
    xs, wanted = held
    scores = xs @ np.swapaxes(xs @ key_query, 1, 2)
    past = np.tril(np.ones(scores.shape[1:], bool))
    scores = np.where(past, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return r_squared(wanted, (weights / weights.sum(axis=2, keepdims=True)) @ (xs @ values))


def is_average(call: Batched, d: int, length: int, random: np.random.Generator) -> float:
    """1 − (relative distance from it) of: one input repeated gives one output, linear in the input, as averages do."""
    steady = np.repeat(random.standard_normal((SEQUENCES, 1, d)), length, axis=1)
    ys = call(steady)
    values = np.linalg.lstsq(steady[:, 0], ys[:, 0], rcond=None)[0]
    return r_squared(ys, steady @ values)


def delta_rule_r2(call: Batched, d: int, length: int, random: np.random.Generator) -> float:
    """R² of the delta rule with one head, on sequences of small inputs, where its products converge."""
    queries = SMALL * random.standard_normal((4 * d, d))
    # Two sizes of c tell w(c) = M c − G c (cᵀM c) apart into its first and its third power.
    values, read = _added(call, np.concatenate([queries, 2 * queries]), random)
    once, twice = np.split(read, 2)
    key_query = np.linalg.lstsq(queries, (8 * once - twice) / 6, rcond=None)[0].T
    asked = queries * np.sum(queries * (queries @ key_query.T), axis=1, keepdims=True)
    gram = np.linalg.lstsq(asked, (2 * once - twice) / 6, rcond=None)[0].T
    xs = SMALL * random.standard_normal((SEQUENCES, length, d))
    return r_squared(call(xs), _delta(values, key_query, gram, xs))


def _added(call: Batched, queries: Float[Array, "n d"], random: np.random.Generator) -> tuple[Array, Array]:
    """V and w(c) of f([a, c]) − f([0, c]) = V a aᵀ w(c): an attention whose queries are any function of c."""
    d = queries.shape[1]
    rows, columns = pair_indices(d)
    inputs = SMALL * (np.eye(d)[rows] + np.eye(d)[columns])
    xs = np.stack(np.broadcast_arrays(inputs[None], queries[:, None]), axis=2).reshape(-1, 2, d)
    silent = xs.copy()
    silent[:, 0] = 0.0
    added = (call(xs) - call(silent))[:, 1].reshape(len(queries), len(inputs), -1) / SMALL**2
    diagonal = added[:, rows == columns] / 4
    mixed = (added - diagonal[:, rows] - diagonal[:, columns]) / 2
    pairs = np.where((rows == columns)[None, :, None], diagonal[:, rows], mixed)
    tensor = np.empty((added.shape[2], d, d, len(queries)))
    tensor[:, rows, columns] = tensor[:, columns, rows] = pairs.transpose(2, 1, 0)
    heads = fewest_heads(tensor, 1e-6, search=False)
    found = levenberg(tensor, heads.values[:1], heads.key_query[:1], enough=1e-6)
    return found.values[0], found.key_query[0].T


def _delta(values: Array, key_query: Array, gram: Array, xs: Array) -> Array:
    """R = S W_K and W = S W_Q instead of the state S: no need to split G or M."""
    held = read = np.zeros((len(xs), len(values), xs.shape[2]))
    ys = []
    for x in xs.transpose(1, 0, 2):
        new = x @ values.T - np.einsum("boa,ba->bo", held, x)
        held = held + np.einsum("bo,ba->boa", new, x @ gram)
        read = read + np.einsum("bo,ba->boa", new, x @ key_query)
        ys.append(np.einsum("boa,ba->bo", read, x))
    return np.stack(ys, axis=1)
