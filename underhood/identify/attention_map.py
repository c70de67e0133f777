"""Which earlier steps an output comes from: y_t = Σ_s c[t, s], and the sizes of c as a map."""

from __future__ import annotations

from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from underhood.arrays import as_sequence, precision_of
from underhood.cells.shares import Past, Shares
from underhood.errors import UnderhoodError
from underhood.identify.maps import AttentionMap, Completeness, Kind, Reduce
from underhood.memory import require_memory
from underhood.model import AbstractModel

KEPT = (
    2**28
)  # bytes of contributions that are kept; those of longer sequences are computed again when they are asked for


def attention_map(
    model: AbstractModel, xs: Any, *, layer: int | None = None, reduce: Reduce = "norm", kind: Kind | None = None
) -> AttentionMap:
    """Which steps each output of `model` on the sequence `xs` comes from.

    `layer` is that of a stack, from 0, on the inputs that it has in there; None is the whole. `kind` is the most
    faithful there is unless it is given.
    """
    if reduce not in get_args(Reduce):
        raise UnderhoodError("expected reduce of norm, sum or none", repr(reduce))
    with precision_of(model):
        xs = np.asarray(as_sequence(xs, model.d, model.dtype))
        if not np.all(np.isfinite(xs)):
            raise UnderhoodError("expected a sequence of finite numbers", "NaN or infinite ones")
        if layer is not None:
            model, xs = _layer(model, xs, layer)
        shares = (
            None
            if kind == "jacobian"
            else model._shared(Shares.of(xs, by_value=kind != "frozen" and _is_one_layer(model)))
        )
        if shares is None:
            shares = _jacobian(model, xs)
            kind = "jacobian"
        kind = kind or ("frozen" if shares.held or not shares.by_value else "exact")
        return _reduced(shares, np.asarray(model(xs)), kind, reduce)


def _layer(model: AbstractModel, xs: np.ndarray, layer: int) -> tuple[AbstractModel, np.ndarray]:
    """One cell of a stack, and its inputs there."""
    cells = getattr(model, "cells", (model,))
    if not (isinstance(layer, int) and 0 <= layer < len(cells)):
        raise UnderhoodError(f"expected a layer from 0 to {len(cells) - 1}", layer)
    if hasattr(model, "cells"):
        xs = np.asarray(model.embedding(jnp.asarray(xs)))
    for cell in cells[:layer]:
        xs = np.asarray(cell(xs))
    return cells[layer], xs


def _is_one_layer(model: AbstractModel) -> bool:
    return len(getattr(model, "cells", (model,))) == 1


def _reduced(shares: Shares, outputs: np.ndarray, kind: Kind, reduce: Reduce) -> AttentionMap:
    length, size = outputs.shape
    own = shares.own
    if reduce != "none":
        names, weights = ("all",), np.zeros((1, length, length), outputs.dtype)
        weights[0][np.diag_indices(length)] = _sizes(own.T, reduce)
    else:
        names = tuple(f"output {i}" for i in range(size))
        weights = np.zeros((size, length, length), outputs.dtype)
        weights[:, np.arange(length), np.arange(length)] = own.T
    kept = np.zeros((length, length, size), outputs.dtype) if outputs.nbytes * length <= KEPT else None
    told = own.copy()
    for rows, columns, block in shares.past or ():
        told[rows] += block.sum(axis=2).T
        weights[:, rows, columns] += block if reduce == "none" else _sizes(block, reduce)[None]
        if kept is not None:
            kept[rows, columns] += block.transpose(1, 2, 0)
    if kept is not None:
        kept[np.diag_indices(length)] = own

    def source(t: int) -> np.ndarray:
        assert kept is not None
        return kept[t, : t + 1]

    return AttentionMap(weights, kind, Completeness.of(outputs, told), reduce, names, source)


def _sizes(block: np.ndarray, reduce: Reduce) -> np.ndarray:
    return np.sqrt(np.sum(block * block, axis=0)) if reduce == "norm" else block.sum(axis=0)


def _jacobian(model: AbstractModel, xs: np.ndarray) -> Shares:
    """c[t, s] = ∂y_t/∂x_s x_s: a tangent for each s, where the reverse mode would take t · d_out cotangents."""
    require_memory(2 * len(xs) ** 2 * model.d_out * xs.itemsize, f"a Jacobian of {len(xs)} steps")
    shares = np.asarray(_tangents(model, jnp.asarray(xs)))  # (s, t, d_out)
    block = np.ascontiguousarray(shares.transpose(2, 1, 0))
    own = np.diagonal(block, axis1=1, axis2=2).T.copy()
    block[:, np.arange(len(xs)), np.arange(len(xs))] = 0
    everything = slice(0, len(xs))
    return Shares(own, own, Past(lambda: iter([(everything, everything, block)]), lambda block, _: block))


@eqx.filter_jit
def _tangents(model: AbstractModel, xs: Any) -> Any:
    _, slope = jax.linearize(lambda inputs: model._scan(inputs, model._initial_state())[0], xs)
    return jax.vmap(lambda s: slope(jnp.zeros_like(xs).at[s].set(xs[s])))(jnp.arange(len(xs)))
