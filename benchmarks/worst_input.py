"""The input for which a network and an attention differ most: random search, then gradient ascent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import underhood as uh
from underhood.algebra.heads import Heads, head_outputs, head_tensor
from underhood.decompiler.from_weights.reading import read
from underhood.layers.linear import dense

SEARCH_D, SEARCH_HIDDEN, SEARCH_ROWS = 6, 160, 240  # padded with zeros, so that jax compiles the search once


def tensor_of(attention: uh.LinearAttention) -> np.ndarray:
    return head_tensor(np.asarray(attention.w_value, np.float64), attention.key_query)


@jax.jit
@jax.vmap
@jax.grad
def _uphill(xs: jax.Array, weights: Any) -> jax.Array:
    """∂/∂x of the largest gap between a gated RNN and T, for the direction of the ascent only."""
    ones = jnp.concatenate([xs, jnp.ones((len(xs), 1), xs.dtype)], axis=1)
    drive = (ones @ weights["w_m"].T) * (ones @ weights["w_x"].T)
    lags = jnp.arange(len(xs))[::-1, None]
    states = jnp.sum(weights["lambda_"] ** lags * drive, axis=0)
    network = weights["readout"] @ ((weights["left"] @ states) * (weights["right"] @ states))
    attention = jnp.einsum("iabc,ta,tb,c->i", weights["tensor"], xs, xs, xs[-1])
    return jnp.max(jnp.abs(network - attention))


def _padded(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(array, np.float64)
    out = np.zeros(shape)
    out[tuple(slice(size) for size in array.shape)] = array
    return out


def _search_weights(network: uh.GatedRNN, attention: uh.LinearAttention) -> dict[str, np.ndarray]:
    d, n, m = SEARCH_D, SEARCH_HIDDEN, SEARCH_ROWS
    branches = {}
    for name, branch in (("w_m", network.input_gating.w_m), ("w_x", network.input_gating.w_x)):
        array = np.asarray(dense(branch), np.float64)
        branches[name] = np.concatenate([_padded(array[:, :-1], (n, d)), _padded(array[:, -1:], (n, 1))], axis=1)
    return {
        **branches,
        "lambda_": _padded(network.lambda_, (n,)),
        "left": _padded(dense(network.output_gating.w_m), (m, n)),
        "right": _padded(dense(network.output_gating.w_x), (m, n)),
        "readout": _padded(dense(network.readout), (d, m)),
        "tensor": _padded(tensor_of(attention), (d, d, d, d)),
    }


def worst_error(
    network: uh.GatedRNN, attention: uh.LinearAttention, bound: float, horizon: int, random: np.random.Generator
) -> float:
    """The largest |y_network − y_attention| that random search and gradient ascent on the inputs find."""
    d, reading = network.d, read(network)
    heads = [Heads(np.asarray(attention.w_value, np.float64), attention.key_query, 0.0)]

    def gaps(xs: np.ndarray) -> np.ndarray:  # in NumPy; jax would compile each network anew
        return np.abs(reading(xs) - head_outputs(heads, (1.0,), xs)).max(axis=(1, 2))

    corners = bound * random.choice([-1.0, 1.0], (48, horizon, d))
    repeated = np.repeat(bound * random.choice([-1.0, 1.0], (48, 1, d)), horizon, axis=1)
    inside = random.uniform(-bound, bound, (32, horizon, d))
    tried = np.concatenate([corners, repeated, inside])
    values = gaps(tried)
    xs = tried[np.argsort(-values)[:16]]
    with jax.enable_x64(True):
        weights = _search_weights(network, attention)
        weights = {name: jnp.broadcast_to(leaf, (16, *leaf.shape)) for name, leaf in weights.items()}
        for step in 2.0 * bound * 0.7 ** np.arange(12):
            slope = np.asarray(_uphill(jnp.asarray(_padded(xs, (16, horizon, SEARCH_D))), weights))[:, :, :d]
            xs = np.clip(xs + step * np.sign(slope), -bound, bound)
            tried, values = np.concatenate([tried, xs]), np.concatenate([values, gaps(xs)])
    worst = float(values.max())
    for one in tried[np.argsort(-values)[:24]]:  # and as the models themselves compute it
        worst = max(worst, float(np.abs(network(one) - attention(one)).max()))
    return worst
