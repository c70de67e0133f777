"""c[t, s] = J_ts (x_s − b_s): contributions out of derivatives, forwards for many rows and backwards for a few.

    jacobian    J = ∂y_t/∂x_s,                  b = 0
    integrated  J = ∫ ∂y_t/∂x_s(b + α(x − b)) dα, by Gauss and Legendre
    frozen      J with gates, norms and f(u)/u held at their values (layers/held.py), b = 0; biases count, too

Backwards, a row and a target cost one pass and O(t·d) numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.model import AbstractModel
from underhood.explain.replaced import Progress
from underhood.layers.held import holding

AT_ONCE = 2**28  # bytes of derivatives that are made together
NODES = 20  # of the path integral

Block = tuple[np.ndarray, Float[np.ndarray, "n rows size"]]  # steps, and what they give to each row


def by_slopes(
    model: AbstractModel,
    xs: Float[np.ndarray, "t d"],
    state: Any,
    rows: tuple[int, ...],
    directions: Float[np.ndarray, "rows d_out"] | None,
    *,
    baselines: Float[np.ndarray, "draws d"] | None = None,
    held: bool = False,
    progress: Progress | None = None,
) -> Iterator[Block]:
    """Contributions of some steps at a time; the path integral from `baselines` if there are any."""
    size = model.d_out if directions is None else 1
    points, weights, ways = _path(xs, baselines)
    aims = np.eye(model.d_out, dtype=xs.dtype) if directions is None else np.asarray(directions, xs.dtype)[:, None]
    picked = np.array(rows)
    if len(rows) * size <= len(xs):
        whole = np.zeros((len(xs), len(rows), size))
        for index, (point, weight, way) in enumerate(zip(points, weights, ways, strict=True)):
            for row, t in enumerate(rows):
                aim = aims if directions is None else aims[row]
                whole[:, row] += weight * np.asarray(_backwards(model, point, way, state, t, aim, held)).T
            if progress is not None:
                progress(index + 1, len(points))
        yield np.arange(len(xs)), whole
        return
    each = len(xs) * (model.d_out + model.d) * xs.itemsize
    count = max(1, min(len(xs), AT_ONCE // (4 * each)))
    for start in range(0, len(xs), count):
        columns = np.arange(start, start + count) % len(xs)  # as many each time, for one compilation
        block = np.zeros((count, len(rows), size))
        for point, weight, way in zip(points, weights, ways, strict=True):
            made = np.asarray(_forwards(model, point, way, state, columns, picked, held))
            block += weight * (made if directions is None else np.einsum("nrd,rd->nr", made, directions)[..., None])
        kept = min(count, len(xs) - start)
        yield columns[:kept], block[:kept]
        if progress is not None:
            progress(start + kept, len(xs))


def _path(xs: np.ndarray, baselines: np.ndarray | None) -> tuple[list[np.ndarray], list[float], list[np.ndarray]]:
    """Where slopes are taken, their weights, and x − b."""
    if baselines is None:
        return [xs], [1.0], [xs]
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    pairs = [
        (base, (1 + node) / 2, weight / 2) for base in baselines for node, weight in zip(nodes, weights, strict=True)
    ]
    points = [(base + share * (xs - base)).astype(xs.dtype) for base, share, _ in pairs]
    return points, [float(weight) / len(baselines) for *_, weight in pairs], [xs - base for base, *_ in pairs]


def _outputs(model: AbstractModel, xs: Array, present: Array, state: Any, held: bool) -> Array:
    if not held:
        return model._scan(xs, state)[0]
    with holding("values", present):
        return model._scan(xs, state)[0]


@eqx.filter_jit
def _backwards(
    model: AbstractModel, xs: Any, way: Any, state: Any, t: Any, aims: Any, held: bool
) -> Float[Array, "size t"]:
    xs, present = jnp.asarray(xs), jnp.ones(len(xs), xs.dtype)
    _, back = jax.vjp(lambda xs, present: _outputs(model, xs, present, state, held)[t], xs, present)

    def of_aim(aim: Array) -> Array:
        by_input, by_bias = back(aim)
        return jnp.sum(by_input * way, axis=1) + by_bias

    return jax.lax.map(of_aim, jnp.asarray(aims))


@eqx.filter_jit
def _forwards(
    model: AbstractModel, xs: Any, way: Any, state: Any, columns: Any, rows: Any, held: bool
) -> Float[Array, "n rows d_out"]:
    xs, present = jnp.asarray(xs), jnp.ones(len(xs), xs.dtype)
    _, slope = jax.linearize(lambda xs, present: _outputs(model, xs, present, state, held)[rows], xs, present)
    way = jnp.asarray(way)

    def of_step(s: Array) -> Array:
        return slope(jnp.zeros_like(xs).at[s].set(way[s]), jnp.zeros_like(present).at[s].set(1))

    return jax.vmap(of_step)(jnp.asarray(columns))
