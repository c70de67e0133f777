"""min Σ_t ‖y_t − Σ_h V_h Σ_{s≤t} x_s (x_sᵀ M_h x_t)‖² over V and M: the nearest attention of a few heads, by descent.

For functions that are no attention, and too wide for the closed form. Given M, the best V is a linear regression; what
is left is minimised over M alone by L-BFGS (variable projection), whose gradient needs no more than a backward pass
with the best V. Tokens stay as they are: no matrix of d²(d + 1)/2 features, nor one of the unknowns. It computes in
float32: how near the nearest is needs three digits.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from underhood.algebra.heads import Heads
from underhood.algebra.quadratic import Array

STEPS = 25
RIDGE = 1e-6


def attend(
    values: Float[Array, "h d_out d"], key_query: Float[Array, "h d d"], decays: Float[Array, " h"], xs: Array
) -> Float[Array, "b t d_out"]:
    """Eq. 1 on a batch, from W_V and M of each head."""
    total = np.zeros((*xs.shape[:2], values.shape[1]))
    for value, key_query_, decay in zip(values, key_query, decays, strict=True):
        total += _gathered(key_query_, _mask(xs.shape[1], decay), xs, xs) @ value.T
    return total


def nearest_heads(
    xs: Float[Array, "b t d"],
    ys: Float[Array, "b q d_out"],
    start: Float[Array, "h d d"],
    *,
    steps: int = STEPS,
) -> Heads:
    """The best heads without decay that descent finds from M = `start`; outputs are those of the last q steps."""
    scale = float(np.sqrt(np.mean(ys**2))) or 1.0
    problem = _Projection(xs, ys / scale, start.shape)
    result = minimize(problem, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 20})
    values, _ = problem.best(result.x)
    return Heads(values * scale, result.x.reshape(start.shape), float(np.sqrt(result.fun)))


class _Projection:
    """M ↦ (mean squared error with the best V, its gradient)."""

    def __init__(self, xs: Array, ys: Array, shape: tuple[int, ...]) -> None:
        self.xs, self.ys, self.shape = xs.astype(np.float32), ys.astype(np.float32), shape
        self.asking = self.xs[:, -ys.shape[1] :]
        self.mask = _mask(xs.shape[1], 1.0)[-ys.shape[1] :].astype(np.float32)
        self.total = float(np.sum(self.ys**2)) or 1.0

    def best(self, flat: Array) -> tuple[Array, Array]:
        """V given M, by the normal equations, and what it leaves over."""
        heads, d, _ = self.shape
        key_query = flat.astype(np.float32).reshape(self.shape)
        features = np.concatenate([_gathered(one, self.mask, self.xs, self.asking) for one in key_query], axis=2)
        rows, targets = features.reshape(-1, heads * d), self.ys.reshape(-1, self.ys.shape[2])
        gram = rows.T @ rows
        gram[np.diag_indices(len(gram))] += RIDGE * np.trace(gram) / len(gram) + np.finfo(np.float32).tiny
        weights = cho_solve(cho_factor(gram), rows.T @ targets)
        return weights.reshape(heads, d, -1).transpose(0, 2, 1), features @ weights - self.ys

    def __call__(self, flat: Array) -> tuple[float, Array]:
        values, left = self.best(flat)
        gradient = np.empty(self.shape)
        for h, value in enumerate(values):
            scores = self.mask * ((left @ value) @ np.swapaxes(self.xs, 1, 2))
            back = np.swapaxes(scores, 1, 2) @ self.asking
            gradient[h] = np.tensordot(self.xs, back, axes=((0, 1), (0, 1)))
        return float(np.sum(left**2)) / self.total, 2 * gradient.ravel() / self.total


def _mask(length: int, decay: float) -> Float[Array, "t s"]:
    lags = np.arange(length)[:, None] - np.arange(length)[None]
    return np.where(lags >= 0, float(decay) ** np.maximum(lags, 0), 0.0)


def _gathered(key_query: Float[Array, "d d"], mask: Float[Array, "q t"], xs: Array, asking: Array) -> Array:
    """Σ_{s≤t} decay^{t-s} x_s (x_sᵀ M x_t), at the steps t that ask."""
    return (mask * (asking @ np.swapaxes(xs @ key_query, 1, 2))) @ xs
