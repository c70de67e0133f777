"""y ≈ Φ(x) w: the best attention there is, and what a function may be instead, each by one linear regression.

    attention           Σ_g Σ_{s≤t} decay_g^{t-s} T_g[x_s, x_s, x_t]
    constant-output     attention + c                   strictly-causal     Σ_{s<t} T[x_s, x_s, x_t]
    linear-term         attention + A x_t + c           constant-inputs     attention of [x, 1]
    linear-recurrence   Σ_k A_k x_{t-k} + c             looks-ahead         attention, forwards and back

The outputs of attention are linear in T, with the features sym(Σ_s decay^{t-s} x_s x_sᵀ) ⊗ x_t: d²(d + 1)/2 of them for
each decay, so that this is a way for small d only. It needs no heads, and no attention either: for any function at
all it finds the nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.algebra.quadratic import Array, append_one, decayed_sums, pair_products, unfold
from underhood.algebra.statistics import r_squared

MOST_ROWS = 40_000
# Eigenvalues of the normal equations, over the largest: those up to the first are zeros, and those between the two are
# too small to be solved with.
ROUNDING, WORST, REFINED = 1e-13, 1e-9, 3
DECAY_STEPS = 6
DECAYS = (1.0, 0.97, 0.92, 0.84, 0.72, 0.56, 0.38, 0.2, 0.05, 0.0)  # a basis for memories that fade at any rate

Features = Callable[[Float[Array, "b t d"]], Float[Array, "b t p"]]


@dataclass(frozen=True)
class DenseAttention:
    """Σ_g Σ_s decay_g^{t-s} T_g[x_s, x_s, x_t], with T_g folded to pairs a ≤ b."""

    decays: tuple[float, ...]
    weights: Float[Array, "g p d_out"]
    d: int

    def __call__(self, xs: Float[Array, "b t d"]) -> Float[Array, "b t d_out"]:
        parts = zip(self.decays, self.weights, strict=True)
        return np.sum([features(xs, decay) @ weights for decay, weights in parts], axis=0)

    @property
    def tensors(self) -> Float[Array, "g d_out d d d"]:
        return np.stack(
            [unfold(weights.T.reshape(-1, len(weights) // self.d, self.d), self.d) for weights in self.weights]
        )


def unknowns(d: int) -> int:
    """Features of one decay."""
    return d * d * (d + 1) // 2


def features(xs: Float[Array, "b t d"], decay: float) -> Float[Array, "b t p"]:
    """sym(Σ_s decay^{t-s} x_s x_sᵀ) ⊗ x_t."""
    sums = decayed_sums(pair_products(xs), decay)
    return np.einsum("btp,btc->btpc", sums, xs).reshape(*xs.shape[:2], -1)


def fit_dense(xs: Float[Array, "b t d"], ys: Float[Array, "b t d_out"], decays: tuple[float, ...]) -> DenseAttention:
    """The best T_g; decays other than 0 and 1 are moved to where they fit best, if they are near it."""
    fitted = _solved(xs, ys, decays)
    for _ in range(DECAY_STEPS):
        free = [g for g, decay in enumerate(fitted.decays) if 0 < decay < 1]
        left = ys - fitted(xs)
        error = float(np.linalg.norm(left) / np.linalg.norm(ys))
        if not free or not 1e-12 < error < 0.1:
            break
        moved = _moved(xs, left, fitted, free)
        if min(moved) <= 0 or max(moved) > 1:
            break
        closer = _solved(xs, ys, moved)
        if np.linalg.norm(ys - closer(xs)) >= 0.9 * np.linalg.norm(left):
            break
        fitted = closer
    return fitted


def least_squares(rows: Float[Array, "n p"], targets: Float[Array, "n d_out"]) -> Float[Array, "p d_out"]:
    """By the normal equations with columns of equal size, refined once and again; by QR where they would lose digits.

    Ten times faster than QR where rows abound. Each refinement gains the digits that the condition number leaves.
    """
    scale = np.linalg.norm(rows, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    rows = rows / scale
    values, vectors = np.linalg.eigh(rows.T @ rows)
    share = values / max(values[-1], np.finfo(float).tiny)
    if ((share > ROUNDING) & (share < WORST)).any():
        q, r = np.linalg.qr(rows)
        return np.linalg.lstsq(r, q.T @ targets, rcond=1e-12)[0] / scale[:, None]
    values, vectors = values[share >= WORST], vectors[:, share >= WORST]
    weights = np.zeros((rows.shape[1], targets.shape[1]))
    for _ in range(REFINED):
        weights += vectors @ ((vectors.T @ (rows.T @ (targets - rows @ weights))) / values[:, None])
    return weights / scale[:, None]


def _solved(xs: Array, ys: Array, decays: tuple[float, ...]) -> DenseAttention:
    rows = np.concatenate([features(xs, decay) for decay in decays], axis=2)
    weights = least_squares(rows.reshape(-1, rows.shape[2]), ys.reshape(-1, ys.shape[2]))
    return DenseAttention(decays, weights.reshape(len(decays), -1, ys.shape[2]), xs.shape[2])


def _moved(xs: Array, left: Array, fitted: DenseAttention, free: list[int]) -> tuple[float, ...]:
    """One Gauss–Newton step: what T leaves over, against ∂y/∂decay, apart from what T could make of it."""
    rows = np.concatenate([features(xs, decay) for decay in fitted.decays], axis=2).reshape(left[..., 0].size, -1)
    basis = np.linalg.qr(rows)[0]
    slopes = []
    for g in free:
        slope = (_slope(xs, fitted.decays[g]) @ fitted.weights[g]).reshape(len(rows), -1)
        slopes.append((slope - basis @ (basis.T @ slope)).ravel())
    step = np.linalg.lstsq(np.stack(slopes, axis=1), left.ravel(), rcond=None)[0]
    moved = np.array(fitted.decays)
    moved[free] += step
    return tuple(moved.tolist())


def _slope(xs: Array, decay: float) -> Float[Array, "b t p"]:
    """The features with (t − s) decay^{t-s-1} for decay^{t-s}: sums of sums, one step later."""
    once = decayed_sums(pair_products(xs), decay)
    late = np.zeros_like(once)
    late[:, 1:] = decayed_sums(once, decay)[:, :-1]
    return np.einsum("btp,btc->btpc", late, xs).reshape(*xs.shape[:2], -1)


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


def explained(make: Features, fit: tuple[Array, Array], held: tuple[Array, Array]) -> float:
    """R² on held-out sequences of the regression on the features."""
    rows = make(fit[0])
    weights = least_squares(rows.reshape(-1, rows.shape[2]), fit[1].reshape(-1, fit[1].shape[2]))
    return r_squared(held[1], make(held[0]) @ weights)


def _times(sums: Float[Array, "b t p"], xs: Float[Array, "b t d"]) -> Float[Array, "b t pd"]:
    return np.einsum("btp,btc->btpc", sums, xs).reshape(*xs.shape[:2], -1)
