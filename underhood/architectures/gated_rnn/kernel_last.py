"""y_T alone, for tasks that read the last output: h_T = Σ_t λ^{T−t} ⊙ Q s(x̃_t), a single product.

Over all products and steps at once, h_T = P S with P[n, (t, q)] = λ_n^{T−t} Q[n, q] and S the products of all
steps, one column a sequence: there is no array of the size neurons × steps × batch, and one output gating
instead of T. At n = 80, T = 13 the training step fell from 0.40 to 0.25 ms by this.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def last_output(
    q: Float[Array, "n q"],
    nu: Float[Array, " n"],
    w_out: Float[Array, "m2 n"],
    readout: Float[Array, "d_o m"],
    features: Float[Array, "t q b"],
) -> Float[Array, "d_o b"]:
    """The output after the last step."""
    return _forward(q, nu, w_out, readout, features)[0]


def _forward(q: Array, nu: Array, w_out: Array, readout: Array, features: Array) -> tuple[Array, Any]:
    n, (t, pairs, b) = len(q), features.shape
    weight = jnp.exp(-jnp.exp(nu)[:, None] * _lags(t, nu))  # λ^{T−t}, without a reversal, which is slow
    p = (weight[:, :, None] * q[:, None, :]).reshape(n, t * pairs)
    h = p @ features.reshape(t * pairs, b)
    branches = (w_out @ h).reshape(2, -1, b)
    product = branches[0] * branches[1]
    return readout @ product, (q, nu, w_out, readout, features, weight, p, h, branches, product)


def _backward(saved: Any, dy: Float[Array, "d_o b"]) -> tuple[Array, ...]:
    q, nu, w_out, readout, features, weight, p, h, branches, product = saved
    n, (t, pairs, b) = len(q), features.shape
    dproduct = readout.T @ dy
    dbranches = (jax.lax.rev(branches, (0,)) * dproduct[None]).reshape(w_out.shape[0], b)
    dh = w_out.T @ dbranches
    dp = (dh @ features.reshape(t * pairs, b).T).reshape(n, t, pairs)
    dq = jnp.matmul(weight[:, None, :], dp)[:, 0, :]
    # λ^k = exp(−k exp(ν)), so d(λ^k)/dν = −k exp(ν) λ^k.
    dweight = jnp.matmul(dp, q[:, :, None])[:, :, 0]
    dnu = -jnp.exp(nu) * jnp.sum(dweight * weight * _lags(t, nu), axis=1)
    return dq, dnu, dbranches @ h.T, dy @ product.T, (p.T @ dh).reshape(features.shape)


last_output.defvjp(_forward, _backward)


def _lags(t: int, like: Array) -> Float[Array, "1 t"]:
    return jnp.arange(t - 1, -1, -1, dtype=like.dtype)[None, :]
