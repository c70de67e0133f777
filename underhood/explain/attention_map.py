"""Which earlier steps an output comes from: y_t = Σ_s c[t, s], and the sizes of c as a map."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, SupportsIndex, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.arrays import as_sequence, precision, precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.core.threads import threads_for
from underhood.explain.maps import AttentionMap, Completeness, Kind, Reduce, whole_number
from underhood.layers.scores import Make, in_parallel
from underhood.layers.shares import NOTHING, Shares

KEPT = 2**28  # bytes of contributions that are kept; of longer sequences, a row is made when it is asked for
TANGENTS = 2**28  # bytes of a Jacobian that are made at once


def attention_map(
    model: Any,
    xs: Any,
    *,
    layer: SupportsIndex | None = None,
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
    `propagate_contributions` has its Jacobian. Biases count to the step that adds them.
    """
    _check(model, reduce, kind)
    with _settings(model):
        sequence = sequence_of(model, xs)
        if layer is not None:
            model, sequence = _layer(model, sequence, layer)
        require_memory(2 * len(sequence) ** 2 * sequence.itemsize, f"a map of {len(sequence)} steps")
        outputs = _finite(np.asarray(model(sequence)))
        return _reduced(_Rows(model, sequence, kind), outputs, reduce)


def sequence_of(model: AbstractModel, xs: Any) -> Float[np.ndarray, "t d"]:
    """Finite numbers of shape (t, d) in the model's dtype."""
    double = np.dtype(np.float64)
    try:
        with precision(double):
            wide = np.asarray(as_sequence(xs, model.d, double))
    except (TypeError, ValueError) as error:
        if isinstance(error, UnderhoodError):
            raise
        rule = f"expected one sequence of shape (t, {model.d}), its rows numbers"
        raise UnderhoodError(rule, type(xs).__name__, "Give one row a time step.") from None
    if not np.all(np.isfinite(wide)):
        raise UnderhoodError("NaN or infinite numbers in the sequence")
    with np.errstate(over="ignore"):
        return _finite(wide.astype(model.dtype), f"the inputs overflow in {model.dtype}")


def _finite(array: np.ndarray, else_: str = "the outputs overflow for these inputs") -> np.ndarray:
    if not np.all(np.isfinite(array)):
        raise UnderhoodError(else_, remedy="Scale the sequence down.")
    return array


@contextlib.contextmanager
def _settings(model: AbstractModel) -> Iterator[None]:
    """The model's precision, and one thread: tiles are small. What overflows is refused, without warnings before."""
    with precision_of(model), threads_for(0), np.errstate(all="ignore"):
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


def _layer(model: Any, xs: np.ndarray, layer: Any) -> tuple[AbstractModel, np.ndarray]:
    """One cell of a stack, and its inputs there."""
    cells, index = _cells(model), whole_number(layer)
    if index is None or not 0 <= index < len(cells):
        shown = f"a layer from 0 to {len(cells) - 1}" if len(cells) > 1 else "layer 0, the only one"
        raise UnderhoodError(f"expected {shown}", repr(layer))
    if cells != (model,):
        xs = _finite(np.asarray(model.embedding(jnp.asarray(xs))))
    for cell in cells[:index]:
        xs = _finite(np.asarray(cell(xs)))
    return cells[index], xs


def _shares(model: AbstractModel, xs: np.ndarray, kind: Kind | None) -> tuple[Shares, Kind]:
    if kind != "jacobian":
        by_value = kind != "frozen" and len(_cells(model)) == 1
        shares: Shares | None = model.propagate_contributions(Shares.of(xs, by_value=by_value))
        is_exact = shares is not None and by_value and not shares.held
        if shares is not None and not (kind == "exact" and not is_exact):
            return shares, "exact" if is_exact else "frozen"
        if kind is not None:
            raise UnderhoodError(f"{model.title} has no {kind} map", remedy="Leave out kind.")
    return _jacobian(model, xs), "jacobian"


class _Rows:
    """The contributions of a map: kept in an array, or made of its shares. Those hold functions, which no pickle has:
    there the model makes them again.
    """

    def __init__(self, model: AbstractModel, xs: np.ndarray, kind: Kind | None) -> None:
        self.model, self.xs = model, xs
        self.asked: Kind | None = kind
        self.made: tuple[Shares, Kind] | None = None
        self.kept: np.ndarray | None = None

    def shares(self) -> tuple[Shares, Kind]:
        self.made = self.made or _shares(self.model, self.xs, self.asked)
        return self.made

    def row(self, t: int) -> Float[np.ndarray, "s d_out"]:
        if self.kept is not None:
            return self.kept[t, : t + 1].copy()
        with _settings(self.model):
            return self.shares()[0].row(t).T

    def pairs(self, t: int) -> Float[np.ndarray, "r s d_out"]:
        with _settings(self.model):
            return self.shares()[0].pairs(t).transpose(1, 2, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": None}


def _reduced(source: _Rows, outputs: Float[np.ndarray, "t d_out"], reduce: Reduce) -> AttentionMap:
    (shares, kind), (length, size) = source.shares(), outputs.shape
    told, steps = shares.own.copy(), np.arange(length)
    kept = np.zeros((length, length, size), outputs.dtype) if outputs.nbytes * length <= KEPT else None
    scores = shares.scores if reduce == "none" else None
    maps, sort = (size, "output") if scores is None else (scores.own.shape[1], scores.sort)
    maps = maps if reduce == "none" else 1
    require_memory(maps * length * length * outputs.itemsize, f"{maps} maps of {length} steps", "Use reduce='norm'.")
    weights = np.zeros((maps, length, length), outputs.dtype)

    def fill(rows: slice, columns: slice, make: Make) -> tuple[slice, np.ndarray]:
        with np.errstate(all="ignore"):  # a thread has its own
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
        source.kept = kept
    names = tuple(f"{sort} {index}" for index in range(maps)) if reduce == "none" else ("all",)
    complete = Completeness.of(outputs, told)
    ends = [weights.min(), weights.max(), np.linalg.norm(outputs), complete]  # sizes are squares, and overflow first
    _finite(np.array(ends), "the map overflows for these inputs")
    pairs = None if shares.factors is None else source.pairs
    return AttentionMap(weights, kind, complete, reduce, names, source.row, pairs)


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
