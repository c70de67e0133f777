"""Which earlier steps an output comes from: y_t = Σ_s c[t, s], and the sizes of c as a map."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.arrays import as_sequence, precision_of
from underhood.cells.scores import Make, in_parallel
from underhood.cells.shares import NOTHING, Shares
from underhood.errors import UnderhoodError
from underhood.identify.maps import AttentionMap, Completeness, Kind, Reduce
from underhood.identify.threads import threads_for
from underhood.memory import require_memory
from underhood.model import AbstractModel

KEPT = 2**28  # bytes of contributions that are kept; of longer sequences, a row is made when it is asked for
TANGENTS = 2**28  # bytes of a Jacobian that are made at once


def attention_map(
    model: Any,
    xs: Any,
    *,
    layer: int | None = None,
    reduce: Reduce = "norm",
    kind: Kind | None = None,
) -> AttentionMap:
    """Which steps each output of `model` on the sequence `xs` comes from: y_t = Σ_{s≤t} c[t, s].

    `layer`: one cell of a stack, from 0, on the inputs that it has in there; the whole stack otherwise. `reduce`: what
    of c[t, s] the map shows, its length ("norm"), the sum of its coordinates ("sum"), or the scores of each head or
    channel ("none"). `kind`:

        exact     one layer that is linear in its values, with its gates, norms and activations from the real input;
        frozen    from the inputs on: activations become factors f(u)/u, convolutions bands, and layers are chained;
        jacobian  ∂y_t/∂x_s x_s, which leaves out what is not linear: `completeness` says how much that is.

    The first of them that the model has is taken unless one is named. LSTM and GRU have a frozen map: with their gates
    and tanh(u)/u held they are linear in their candidates. So all of the output is told, and a compiled network shows
    the attention that it holds, which the slopes of its products would count twice. A model of another package without
    `_shared` has its Jacobian. Biases count to the step that adds them.
    """
    _check(model, reduce, kind)
    with _settings(model):
        sequence = np.asarray(as_sequence(xs, model.d, model.dtype))
        if not np.all(np.isfinite(sequence)):
            raise UnderhoodError("NaN or infinite numbers in the sequence")
        if layer is not None:
            model, sequence = _layer(model, sequence, layer)
        require_memory(2 * len(sequence) ** 2 * sequence.itemsize, f"a map of {len(sequence)} steps")
        shares, kind = _shares(model, sequence, kind)
        return _reduced(model, shares, np.asarray(model(sequence)), kind, reduce)


@contextlib.contextmanager
def _settings(model: AbstractModel) -> Iterator[None]:
    """The model's precision, and one thread: tiles are small."""
    with precision_of(model), threads_for(0):
        yield


def _check(model: Any, reduce: str, kind: str | None) -> None:
    if not isinstance(model, AbstractModel):
        raise UnderhoodError("expected a model of this package", type(model).__name__, "Use uh.from_torch(module).")
    if reduce not in get_args(Reduce):
        raise UnderhoodError("expected reduce of norm, sum or none", repr(reduce))
    if kind not in (None, *get_args(Kind)):
        raise UnderhoodError("expected kind of exact, frozen or jacobian", repr(kind))


def _cells(model: Any) -> tuple[AbstractModel, ...]:
    return getattr(model, "cells", (model,))


def _layer(model: Any, xs: np.ndarray, layer: int) -> tuple[AbstractModel, np.ndarray]:
    """One cell of a stack, and its inputs there."""
    cells = _cells(model)
    if not (isinstance(layer, int) and 0 <= layer < len(cells)):
        shown = f"a layer from 0 to {len(cells) - 1}" if len(cells) > 1 else "layer 0, the only one"
        raise UnderhoodError(f"expected {shown}", repr(layer))
    if cells != (model,):
        xs = np.asarray(model.embedding(jnp.asarray(xs)))
    for cell in cells[:layer]:
        xs = np.asarray(cell(xs))
    return cells[layer], xs


def _shares(model: AbstractModel, xs: np.ndarray, kind: Kind | None) -> tuple[Shares, Kind]:
    if kind != "jacobian":
        by_value = kind != "frozen" and len(_cells(model)) == 1
        shares: Shares | None = model._shared(Shares.of(xs, by_value=by_value))
        is_exact = shares is not None and by_value and not shares.held
        if shares is not None and not (kind == "exact" and not is_exact):
            return shares, "exact" if is_exact else "frozen"
        if kind is not None:
            raise UnderhoodError(f"{model.title} has no {kind} map", remedy="Leave out kind.")
    return _jacobian(model, xs), "jacobian"


def _reduced(
    model: AbstractModel, shares: Shares, outputs: Float[np.ndarray, "t d_out"], kind: Kind, reduce: Reduce
) -> AttentionMap:
    length, size = outputs.shape
    told, steps = shares.own.copy(), np.arange(length)
    kept = np.zeros((length, length, size), outputs.dtype) if outputs.nbytes * length <= KEPT else None
    scores = shares.scores if reduce == "none" else None
    maps, sort = (size, "output") if scores is None else (scores.own.shape[1], scores.sort)
    maps = maps if reduce == "none" else 1
    require_memory(maps * length * length * outputs.itemsize, f"{maps} maps of {length} steps", "Use reduce='norm'.")
    weights = np.zeros((maps, length, length), outputs.dtype)

    def fill(rows: slice, columns: slice, make: Make) -> tuple[slice, np.ndarray]:
        block = past.map(make(), rows)
        if scores is None:
            weights[:, rows, columns] = _sizes(block, reduce)
        if kept is not None:
            kept[rows, columns] = block.transpose(1, 2, 0)
        return rows, block.sum(axis=2).T

    past = shares.past or NOTHING
    for rows, sums in in_parallel(fill, past.tiles()):
        told[rows] += sums
    for rows, columns, make in scores.past() if scores else ():
        weights[:, rows, columns] = make()
    weights[:, steps, steps] = _sizes(shares.own.T, reduce) if scores is None else scores.own.T
    if kept is not None:
        kept[steps, steps] = shares.own

    def row(t: int) -> np.ndarray:
        if kept is not None:
            return kept[t, : t + 1]
        with _settings(model):
            return shares.row(t).T

    def pairs(t: int) -> np.ndarray:
        with _settings(model):
            return shares.pairs(t).transpose(1, 2, 0)

    names = tuple(f"{sort} {index}" for index in range(maps)) if reduce == "none" else ("all",)
    complete = Completeness.of(outputs, told)
    return AttentionMap(weights, kind, complete, reduce, names, row, None if shares.factors is None else pairs)


def _sizes(block: np.ndarray, reduce: Reduce) -> np.ndarray:
    """Of vectors along the first axis."""
    if reduce == "none":
        return block
    return np.sqrt(np.einsum("n...,n...->...", block, block))[None] if reduce == "norm" else block.sum(axis=0)[None]


def _jacobian(model: AbstractModel, xs: np.ndarray) -> Shares:
    """c[t, s] = ∂y_t/∂x_s x_s, a tangent for each s: the reverse mode would take t · d_out cotangents."""
    length, size = len(xs), model.d_out
    require_memory(2 * size * length * length * xs.itemsize, f"the Jacobian of {length} steps")
    whole = np.zeros((size, length, length), xs.dtype)
    count = max(1, min(length, TANGENTS // (length * (size + model.d) * xs.itemsize)))
    for start in range(0, length, count):
        columns = np.arange(start, start + count) % length  # as many each time, for one compilation
        whole[:, :, columns] = np.asarray(_tangents(model, jnp.asarray(xs), jnp.asarray(columns)))
    return Shares.of(xs, by_value=False).made_of(whole.sum(axis=2).T, whole)


@eqx.filter_jit
def _tangents(model: AbstractModel, xs: Array, columns: Array) -> Float[Array, "d_out t columns"]:
    _, slope = jax.linearize(lambda inputs: model._scan(inputs, model._initial_state())[0], xs)
    return jax.vmap(lambda s: slope(jnp.zeros_like(xs).at[s].set(xs[s])))(columns).transpose(2, 1, 0)
