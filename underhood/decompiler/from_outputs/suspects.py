"""y ≈ Φ(x) w: what a function may be instead of attention, each a set of features and one linear regression.

    linear-recurrence   Σ_k A_k x_{t-k} + c             strictly-causal   Σ_{s<t} T[x_s, x_s, x_t]
    constant-output     attention + c                   constant-inputs   attention of [x, 1]
    linear-term         attention + A x_t + c           several-decays    Σ_λ Σ_s λ^{t-s} T_λ[x_s, x_s, x_t]
    looks-ahead         attention, forwards and back

Features are few because the inputs are: a random subspace of three dimensions shows everything a function does to its
inputs, up to what the subspace hides by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, append_one, decayed_sums, pair_products
from underhood.algebra.statistics import r_squared
from underhood.decompiler.from_outputs.closed_form import features, least_squares

DECAYS = (1.0, 0.97, 0.92, 0.84, 0.72, 0.56, 0.38, 0.2, 0.05, 0.0)

Features = Callable[[Float[Array, "b t d"]], Float[Array, "b t p"]]


def attention(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    return features(xs, 1.0)


def constant_output(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    return append_one(attention(xs))


def linear_term(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    return append_one(np.concatenate([attention(xs), xs], axis=2))


def constant_inputs(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    """Queries, keys and values with biases, an output projection's bias and the residual stream beside them."""
    return append_one(np.concatenate([attention(append_one(xs)), xs], axis=2))


def strictly_causal(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    sums = decayed_sums(pair_products(xs), 1.0) - pair_products(xs)
    return _times(sums, xs)


def several_decays(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    return np.concatenate([features(xs, decay) for decay in DECAYS], axis=2)


def linear_recurrence(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    """All inputs so far, by their lag."""
    length = xs.shape[1]
    lagged = np.zeros((*xs.shape[:2], length, xs.shape[2]))
    for lag in range(length):
        lagged[:, lag:, lag] = xs[:, : length - lag]
    return append_one(lagged.reshape(*xs.shape[:2], -1))


def looks_ahead(xs: Float[Array, "b t d"]) -> Float[Array, "b t p"]:
    """Attention of [x, 1] over the past and over all inputs, and all inputs themselves."""
    known = append_one(xs)
    whole = np.broadcast_to(pair_products(known).sum(axis=1, keepdims=True), pair_products(known).shape)
    return np.concatenate([attention(known), _times(whole, known), np.flip(xs.cumsum(axis=1), axis=1)], axis=2)


SUSPECTS: dict[str, Features] = {
    "linear-recurrence": linear_recurrence,
    "constant-output": constant_output,
    "linear-term": linear_term,
    "strictly-causal": strictly_causal,
    "constant-inputs": constant_inputs,
    "several-decays": several_decays,
}


def explained(suspect: Features, fit: tuple[Array, Array], held: tuple[Array, Array]) -> float:
    """R² on held-out sequences of the regression on the suspect's features."""
    rows = suspect(fit[0])
    weights = least_squares(rows.reshape(-1, rows.shape[2]), fit[1].reshape(-1, fit[1].shape[2]))
    return r_squared(held[1], suspect(held[0]) @ weights)


def _times(sums: Float[Array, "b t p"], xs: Float[Array, "b t d"]) -> Float[Array, "b t pd"]:
    return np.einsum("btp,btc->btpc", sums, xs).reshape(*xs.shape[:2], -1)
