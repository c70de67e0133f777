"""Which earlier steps an output comes from: y_t = Σ_s c[t, s], and the sizes of c as a map."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from underhood.core.arrays import as_sequence, precision, precision_of
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel
from underhood.core.threads import threads_for
from underhood.explain.maps import (
    AttentionMap,
    Cancellation,
    CancellationWarning,
    Completeness,
    Kind,
    Reduce,
    whole_number,
)
from underhood.explain.replaced import PERMUTATIONS, Progress, Runs, baseline_of, shapley
from underhood.explain.slopes import by_slopes
from underhood.layers.scores import Make, in_parallel
from underhood.layers.shares import NOTHING, Shares

KEPT = 2**28  # bytes of contributions that are kept; of longer sequences, a row is made when it is asked for
SHARES = 2**29  # bytes from which a frozen map is made a few steps at a time


def attention_map(
    model: Any,
    xs: Any,
    *,
    layer: SupportsIndex | None = None,
    reduce: Reduce = "norm",
    kind: Kind | None = None,
    baseline: Any = "zero",
    rows: Sequence[SupportsIndex] | None = None,
    target: Any = None,
    state: Any = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Any:
    """Which steps each output of `model` on the sequence `xs` comes from: y_t = Σ_{s≤t} c[t, s].

    Kinds, and what c[t, s] is:

        exact       what the value of step s adds, in one layer that is linear in its values: gates, norms and queries
                    are held at the values that they take on `xs`
        frozen      what input x_s adds, with activations as factors f(u)/u and gates and norms held, through all layers
        jacobian    ∂y_t/∂x_s x_s
        deletion    what changes in y_t when x_s is replaced by the baseline
        shapley     the same, averaged over random orders in which steps are replaced
        integrated  (x_s − b_s) times the mean slope on the straight way from the baseline to the sequence

    The default is the first that the model has of exact and frozen; where gates read the state (LSTM, GRU), deletion.
    Which of them can be believed is measured by `uh.faithfulness`.

    **Arguments:**

    - `model`: A model of this package; `uh.from_torch(module)` makes one of a torch module.
    - `xs`: A sequence (t, d), or a batch (b, t, d), which gives a list of maps.
    - `layer`: One cell of a stack, from 0, on the inputs that it has in there; the whole stack unless given.
    - `reduce`: What the map shows of c[t, s]: its length ("norm"), the sum of its coordinates ("sum"), or a map for
        each head, channel or output coordinate ("none").
    - `kind`: One of those above.
    - `baseline`: What replaces a step: "zero", "mean" (of the sequence), a vector, or sequences to draw steps from.
    - `rows`: Steps whose outputs are explained, such as [-1]; all unless given.
    - `target`: Contributions to a number instead of a vector: the index of an output, a direction (d_out,), or
        "output", the direction of y_t itself. The map then has signs.
    - `state`: The state before the first step, as `model.initial_state()` has it; that one unless given.
    - `permutations`, `seed`: Random orders of a Shapley map, each with its reverse, and their seed.
    - `progress`: Called with what is done and what there is, now and then.

    **Returns:**

    An `AttentionMap`: `.weights` (maps, rows, t), `.contributions(t)`, `.completeness`, `.cancellation`. A
    `CancellationWarning` is issued where the contributions mostly undo each other.
    """
    _check(model, reduce, kind)
    ask = _Ask(layer, reduce, kind, baseline, rows, target, state, permutations, seed)
    if _is_batch(xs):
        return [_map_of(model, one, ask, progress) for one in np.asarray(xs)]
    return _map_of(model, xs, ask, progress)


def _is_batch(xs: Any) -> bool:
    try:
        return np.ndim(xs) == 3
    except (TypeError, ValueError):  # rows of different lengths: `sequence_of` refuses them
        return False


class _Ask(NamedTuple):
    """What was asked for."""

    layer: Any
    reduce: Reduce
    kind: Kind | None
    baseline: Any
    rows: Any
    target: Any
    state: Any
    permutations: int
    seed: int


def _map_of(model: AbstractModel, xs: Any, ask: _Ask, progress: Progress | None) -> AttentionMap:
    with settings_of(model):
        sequence = sequence_of(model, xs)
        if ask.layer is not None:
            if ask.state is not None:
                raise UnderhoodError("expected a state or a layer, not both", remedy="Pass the cell itself as model.")
            model, sequence = inside(model, sequence, ask.layer)
        rows = _rows_of(ask.rows, len(sequence))
        state = state_of(model, ask.state)
        baselines = baseline_of(ask.baseline, sequence, ask.seed)
        count = whole_number(ask.permutations)
        if count is None or count < 2:
            raise UnderhoodError("expected permutations of 2 or more", repr(ask.permutations))
        kept = len(sequence) if rows is None else len(rows)
        require_memory(2 * kept * len(sequence) * sequence.itemsize, f"a map of {len(sequence)} steps")
        outputs = _finite(np.asarray(model.scan(sequence, state)[0]))
        directions = _directions_of(ask.target, outputs, rows)
        made = _made(model, sequence, outputs, ask, _Where(rows, directions, state, baselines), progress)
    if made.warning is not None:
        warnings.warn(made.warning, CancellationWarning, stacklevel=3)
    return made


class _Where(NamedTuple):
    rows: tuple[int, ...] | None
    directions: np.ndarray | None
    state: Any
    baselines: np.ndarray


def _made(
    model: AbstractModel, xs: np.ndarray, outputs: np.ndarray, ask: _Ask, where: _Where, progress: Progress | None
) -> AttentionMap:
    kind, is_whole = ask.kind, where.rows is None and where.directions is None
    prefers_deletion = any(cell.default_map == "deletion" for cell in _cells(model))
    if kind is None and (prefers_deletion or ask.state is not None):
        kind = "deletion"
    if kind in ("deletion", "shapley", "integrated", "jacobian"):
        return _by_columns(model, xs, outputs, kind, ask, where, progress)
    if kind == "exact" and ask.state is not None:
        raise UnderhoodError("an exact map begins with an empty memory", remedy="Use kind='deletion' or leave it out.")
    is_marked = all(cell.is_marked for cell in _cells(model))
    frozen = kind == "frozen" or (kind is None and len(_cells(model)) > 1)
    if frozen and is_marked and (not is_whole or ask.state is not None or _is_large(model, xs)):
        return _by_columns(model, xs, outputs, "frozen", ask, where, progress)
    if ask.state is not None:
        raise UnderhoodError(f"a frozen map of {model.title} begins with its own state", remedy="Use kind='deletion'.")
    source = _Rows(model, xs, kind)
    if source.shares()[1] == "jacobian":
        return _by_columns(model, xs, outputs, "jacobian", ask, where, progress)
    return _reduced(source, outputs, ask.reduce) if is_whole else _picked(source, outputs, ask, where)


def _is_large(model: AbstractModel, xs: np.ndarray) -> bool:
    """Whether the shares of all channels between all steps are too many to hold at once."""
    widest = max(max(cell.d, cell.d_out) for cell in _cells(model))
    return len(xs) ** 2 * 4 * widest * xs.itemsize > SHARES


def _rows_of(rows: Any, length: int) -> tuple[int, ...] | None:
    if rows is None:
        return None
    numbers = [whole_number(row) for row in rows] if isinstance(rows, Sequence | np.ndarray) else []
    if not numbers or any(number is None or not -length <= number < length for number in numbers):
        raise UnderhoodError(f"expected rows as a list of steps from {-length} to {length - 1}", repr(rows)[:40])
    return tuple(int(number) % length for number in numbers if number is not None)


def state_of(model: AbstractModel, state: Any) -> Any:
    """The state asked for, with the shapes that the model's own has."""
    own = model.initial_state()
    if state is None:
        return model._initial_state()
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state)]
    wanted = [np.shape(leaf) for leaf in jax.tree.leaves(own)]
    if jax.tree.structure(state) != jax.tree.structure(own) or shapes != wanted:
        raise UnderhoodError(f"expected a state with arrays of shape {wanted}, as model.initial_state() has", shapes)
    state = jax.tree.map(lambda leaf: np.asarray(leaf, model.dtype), state)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state)):
        raise UnderhoodError("NaN or infinite numbers in the state")
    return jax.tree.map(jnp.asarray, state)


def _directions_of(target: Any, outputs: np.ndarray, rows: tuple[int, ...] | None) -> np.ndarray | None:
    """A direction of each row's output."""
    if target is None:
        return None
    picked, size = outputs[slice(None) if rows is None else list(rows)], outputs.shape[1]
    if isinstance(target, str) and target == "output":
        return picked / np.maximum(np.linalg.norm(picked, axis=1, keepdims=True), np.finfo(picked.dtype).tiny)
    index = whole_number(target)
    if index is not None and -size <= index < size:
        direction = np.eye(size)[index]
    else:
        rule = f"expected a target of 0 to {size - 1}, a direction of {size} numbers or 'output'"
        try:
            direction = np.asarray(target, np.float64)
        except (TypeError, ValueError):
            raise UnderhoodError(rule, repr(target)[:40]) from None
        if direction.shape != (size,) or not np.all(np.isfinite(direction)):
            raise UnderhoodError(rule, repr(target)[:40])
    return np.broadcast_to(direction, (len(picked), size)).astype(outputs.dtype)


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
        raise UnderhoodError(rule, type(xs).__name__, "Pass one row per time step.") from None
    if not np.all(np.isfinite(wide)):
        raise UnderhoodError("NaN or infinite numbers in the sequence")
    with np.errstate(over="ignore"):
        return _finite(wide.astype(model.dtype), f"the inputs overflow in {model.dtype}")


def _finite(array: np.ndarray, message: str = "the outputs overflow for these inputs") -> np.ndarray:
    if not np.all(np.isfinite(array)):
        raise UnderhoodError(message, remedy="Scale the sequence down.")
    return array


@contextlib.contextmanager
def settings_of(model: AbstractModel) -> Iterator[None]:
    """The model's precision, and one thread: tiles are small. What overflows is refused, without warnings before."""
    with precision_of(model), threads_for(0), np.errstate(all="ignore"):
        yield


def _check(model: Any, reduce: str, kind: str | None) -> None:
    if not isinstance(model, AbstractModel):
        remedy = "Use uh.from_torch(module) or uh.read(path); of a function, uh.probe(f, d=...).attention has a map."
        raise UnderhoodError("expected a model of this package", type(model).__name__, remedy)
    if reduce not in get_args(Reduce):
        raise UnderhoodError("expected reduce of norm, sum or none", repr(reduce))
    if kind not in (None, *get_args(Kind)):
        raise UnderhoodError(f"expected a kind of {', '.join(get_args(Kind))}", repr(kind))


def _cells(model: Any) -> tuple[AbstractModel, ...]:
    return getattr(model, "cells", (model,))


def inside(model: Any, xs: np.ndarray, layer: Any) -> tuple[AbstractModel, np.ndarray]:
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


def _shares(model: AbstractModel, xs: np.ndarray, kind: Kind | None) -> tuple[Shares | None, Kind]:
    by_value = kind != "frozen" and len(_cells(model)) == 1
    shares: Shares | None = model.propagate_contributions(Shares.of(xs, by_value=by_value))
    is_exact = shares is not None and by_value and not shares.held
    if shares is not None and not (kind == "exact" and not is_exact):
        return shares, "exact" if is_exact else "frozen"
    if kind is not None:
        raise UnderhoodError(f"{model.title} has no {kind} map", remedy="Leave out kind.")
    return None, "jacobian"


class _Rows:
    """The contributions of a map: kept in an array, or made of its shares. Those hold functions, which no pickle has:
    there the model makes them again.
    """

    def __init__(self, model: AbstractModel, xs: np.ndarray, kind: Kind | None) -> None:
        self.model, self.xs = model, xs
        self.asked: Kind | None = kind
        self.made: tuple[Shares | None, Kind] | None = None
        self.kept: np.ndarray | None = None

    def shares(self) -> tuple[Shares | None, Kind]:
        self.made = self.made or _shares(self.model, self.xs, self.asked)
        return self.made

    def row(self, t: int) -> Float[np.ndarray, "s d_out"]:
        if self.kept is not None:
            return self.kept[t, : t + 1].copy()
        with settings_of(self.model):
            shares = self.shares()[0]
            assert shares is not None
            return shares.row(t).T

    def pairs(self, t: int) -> Float[np.ndarray, "r s d_out"]:
        with settings_of(self.model):
            shares = self.shares()[0]
            assert shares is not None
            return shares.pairs(t).transpose(1, 2, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": None}


def _reduced(source: _Rows, outputs: Float[np.ndarray, "t d_out"], reduce: Reduce) -> AttentionMap:
    (shares, kind), (length, size) = source.shares(), outputs.shape
    assert shares is not None
    told, steps = shares.own.copy(), np.arange(length)
    sizes = np.linalg.norm(shares.own, axis=1)
    kept = np.zeros((length, length, size), outputs.dtype) if outputs.nbytes * length <= KEPT else None
    scores = shares.scores if reduce == "none" else None
    maps, sort = (size, "output") if scores is None else (scores.own.shape[1], scores.sort)
    maps = maps if reduce == "none" else 1
    require_memory(maps * length * length * outputs.itemsize, f"{maps} maps of {length} steps", "Use reduce='norm'.")
    weights = np.zeros((maps, length, length), outputs.dtype)

    def fill(rows: slice, columns: slice, make: Make) -> tuple[slice, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):  # a thread has its own
            block = past.map(make(), rows)
            lengths = _sizes(block, "norm")
            if scores is None:
                weights[:, rows, columns] = lengths if reduce == "norm" else _sizes(block, reduce)
            if kept is not None:
                kept[rows, columns] = block.transpose(1, 2, 0)
            return rows, block.sum(axis=2).T, lengths[0].sum(axis=1)

    past = shares.past or NOTHING
    for rows, sums, lengths in in_parallel(fill, past.tiles()):
        told[rows] += sums
        sizes[rows] += lengths
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
    cancels = Cancellation.of(outputs, sizes)
    return AttentionMap(weights, kind, complete, reduce, names, source.row, pairs, cancels)


class _Columns:
    """A map that is made some steps at a time, for the rows asked for, with their contributions where they fit."""

    def __init__(self, outputs: np.ndarray, rows: tuple[int, ...], length: int, reduce: Reduce) -> None:
        self.outputs, self.rows, self.length = outputs, np.array(rows), length
        self.reduce: Reduce = reduce
        size = outputs.shape[1]
        maps = size if reduce == "none" else 1
        shape, itemsize = (len(rows), length), outputs.itemsize
        require_memory(maps * len(rows) * length * itemsize, f"{maps} maps of {length} steps", "Use reduce='norm'.")
        self.weights = np.zeros((maps, *shape), outputs.dtype)
        self.lengths = np.zeros(shape)
        keeps = len(rows) == 1 or len(rows) * length * size * itemsize <= KEPT  # `_Again` asks for single rows
        self.kept = np.zeros((*shape, size), outputs.dtype) if keeps else None
        self.told, self.own = np.zeros(outputs.shape), np.zeros(outputs.shape)

    def add(self, steps: np.ndarray, block: Float[np.ndarray, "n rows size"]) -> None:
        """What earlier steps give; what they give as the own step is put aside."""
        own = steps[:, None] == self.rows
        index, row = np.nonzero(own)
        self.own[row] = block[index, row]
        earlier = np.where((steps[:, None] < self.rows)[:, :, None], block, 0)
        self.told += earlier.sum(axis=0)
        self._put(steps, earlier)

    def _put(self, steps: np.ndarray, block: np.ndarray) -> None:
        turned = block.transpose(2, 1, 0)
        self.weights[:, :, steps] = _sizes(turned, self.reduce)
        self.lengths[:, steps] = np.linalg.norm(block, axis=2).T
        if self.kept is not None:
            self.kept[:, steps] = block.transpose(1, 0, 2)

    def finish(self) -> None:
        """The own shares, in their places."""
        index = np.arange(len(self.rows))
        self.told += self.own
        self.weights[:, index, self.rows] = _sizes(self.own.T, self.reduce)
        self.lengths[index, self.rows] = np.linalg.norm(self.own, axis=1)
        if self.kept is not None:
            self.kept[index, self.rows] = self.own


def _by_columns(
    model: AbstractModel,
    xs: np.ndarray,
    outputs: np.ndarray,
    kind: Kind,
    ask: _Ask,
    where: _Where,
    progress: Progress | None,
) -> AttentionMap:
    """Kinds that rerun the model, or go through it backwards or forwards."""
    rows = tuple(range(len(xs))) if where.rows is None else where.rows
    told = outputs[list(rows)]
    aimed = told if where.directions is None else np.sum(told * where.directions, axis=1, keepdims=True)
    reduce: Reduce = ask.reduce if where.directions is None else "sum"
    columns, errors = _Columns(aimed, rows, len(xs), reduce), None
    runs = Runs(model, xs, where.state, rows, where.directions) if kind in ("deletion", "shapley") else None
    if kind == "shapley" and runs is not None:
        mean, errors = shapley(runs, where.baselines, ask.permutations, ask.seed, progress)
        columns.add(np.arange(len(xs)), mean)
    elif runs is not None:
        for steps, changed in runs.deletions(where.baselines, progress):
            columns.add(steps, changed)
        columns.own = runs.own(columns.own, where.baselines)
    else:
        path = where.baselines if kind == "integrated" else None
        options = {"baselines": path, "held": kind == "frozen", "progress": progress}
        for steps, block in by_slopes(model, xs, where.state, rows, where.directions, **options):
            columns.add(steps, block)
    columns.finish()
    names = tuple(f"output {index}" for index in range(len(columns.weights))) if reduce == "none" else ("all",)
    complete = Completeness.of(aimed, columns.told)
    _finite(np.array([columns.weights.min(), columns.weights.max(), complete]), "the map overflows for these inputs")
    again = ask._replace(kind=kind, target=None if where.directions is None else "again")
    source = _Again(model, xs, again, where, columns.kept, rows)
    return AttentionMap(
        columns.weights,
        kind,
        complete,
        reduce,
        names,
        source.row,
        cancellation=Cancellation.of(aimed, columns.lengths.sum(axis=1)),
        rows=where.rows,
        directions=where.directions,
        standard_error=None if errors is None else errors.T,
    )


class _Again:
    """The contributions of a row: kept, or made again."""

    def __init__(
        self, model: AbstractModel, xs: np.ndarray, ask: _Ask, where: _Where, kept: np.ndarray | None, rows: Any
    ) -> None:
        self.model, self.xs, self.ask, self.where, self.kept = model, xs, ask, where, kept
        self.places = {row: index for index, row in enumerate(rows)}

    def row(self, t: int) -> Float[np.ndarray, "s size"]:
        place = self.places.get(t)
        if place is not None and self.kept is not None:
            return self.kept[place, : t + 1].copy()
        if place is None and self.where.directions is not None:
            raise UnderhoodError(f"expected one of the rows {sorted(self.places)}"[:80], t)
        aim = None if self.where.directions is None or place is None else self.where.directions[place : place + 1]
        with settings_of(self.model):
            state = jax.tree.map(jnp.asarray, self.where.state)  # of NumPy's after a pickle
            outputs = np.asarray(self.model.scan(self.xs, state)[0])
            where = self.where._replace(rows=(t,), directions=aim, state=state)
            made = _by_columns(self.model, self.xs, outputs, self.ask.kind or "deletion", self.ask, where, None)
        assert made.source is not None
        return made.source(t)

    def __getstate__(self) -> dict[str, Any]:
        # Outside of the model's precision, jax would read an array of its own in float64 back as float32.
        return {**vars(self), "where": self.where._replace(state=jax.tree.map(np.asarray, self.where.state))}


def _picked(source: _Rows, outputs: np.ndarray, ask: _Ask, where: _Where) -> AttentionMap:
    """Some rows of a map that is made of shares, or what they give in some directions."""
    rows = tuple(range(len(outputs))) if where.rows is None else where.rows
    directions = where.directions
    aimed = outputs[list(rows)] if directions is None else np.sum(outputs[list(rows)] * directions, 1, keepdims=True)
    reduce: Reduce = ask.reduce if directions is None else "sum"
    columns = _Columns(aimed, rows, len(outputs), reduce)
    aimed_source = _Aimed(source, rows, directions)
    for index, t in enumerate(rows):
        row = aimed_source.row(t)
        turned = row.T[:, None]
        columns.weights[:, index, : t + 1] = _sizes(turned, reduce)[:, 0]
        columns.lengths[index, : t + 1] = np.linalg.norm(row, axis=1)
        columns.told[index] = row.sum(axis=0)
    names = tuple(f"output {index}" for index in range(len(columns.weights))) if reduce == "none" else ("all",)
    cancels = Cancellation.of(aimed, columns.lengths.sum(axis=1))
    complete = Completeness.of(aimed, columns.told)
    kind = source.shares()[1]
    of = aimed_source.row
    return AttentionMap(columns.weights, kind, complete, reduce, names, of, None, cancels, where.rows, directions)


class _Aimed:
    """Rows of a map that is made of shares, in the directions asked for."""

    def __init__(self, source: _Rows, rows: tuple[int, ...], directions: np.ndarray | None) -> None:
        self.source, self.directions = source, directions
        self.places = {row: index for index, row in enumerate(rows)}

    def row(self, t: int) -> Float[np.ndarray, "s size"]:
        row = self.source.row(t)
        if self.directions is None:
            return row
        if t not in self.places:
            raise UnderhoodError(f"expected one of the rows {sorted(self.places)}"[:80], t)
        return row @ self.directions[self.places[t]][:, None]


def _sizes(block: np.ndarray, reduce: Reduce) -> np.ndarray:
    """Of vectors along the first axis."""
    if reduce == "none":
        return block
    return np.sqrt(np.einsum("n...,n...->...", block, block))[None] if reduce == "norm" else block.sum(axis=0)[None]
