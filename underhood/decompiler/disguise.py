"""y = D ((W_m h) ⊙ (W_x h)) is the same function in many weights (Sections 2.2 and B.2): a random one of them.

Ground truth for this decompiler and for other tools. Each change below keeps the function exactly in exact
arithmetic, and to rounding in floating point:

    copies      a neuron becomes two that share its work
    spreading   a product of two readings becomes several whose kernels sum to it (B.2)
    sharing     a pre-readout neuron becomes two that split its readout
    mixing      queries are mixed by an invertible matrix and read through its inverse (Section 2.2); so are
                memory neurons that share one factor
    dead        neurons that nobody reads, that hold nothing, or that do not reach the output
    gauge       rows scaled and divided between branches, branches swapped, neurons permuted
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from underhood.algebra.gated import GatedArrays
from underhood.architectures.gated_rnn.cell import DenseGatedRNN, GatedRNN
from underhood.architectures.stack.cell import Stack
from underhood.core.arrays import require_finite
from underhood.core.errors import NotFinite, UnderhoodError
from underhood.layers.gauge import Signal
from underhood.layers.linear import Linear

Array = np.ndarray


@np.errstate(all="ignore")  # what overflows is refused below
def disguise(model: Any, *, seed: int = 0) -> Any:
    """A network with other weights, more neurons and the same function.

    **Arguments:**

    - `model`: a gated RNN of Eq. 2, or a stack of cells that say how (`disguise_weights`).
    - `seed`: of the change.

    **Returns:**

    A model of the same class and dtype. Raises `UnderhoodError` where scaled and mixed weights would leave the dtype.
    """
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed)
    kinds = {Stack: _disguise_stack, DenseGatedRNN: _disguise_dense, GatedRNN: _disguise_diagonal}
    change = next((change for kind, change in kinds.items() if isinstance(model, kind)), None)
    if change is None:
        raise UnderhoodError(
            "expected a gated RNN or a stack of cells to disguise",
            getattr(model, "kind", type(model).__name__),
            "Compile an attention first: underhood compile.",
        )
    try:
        hidden = change(model, np.random.default_rng(seed))
    except NotFinite:
        hidden = None
    if hidden is None or not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(hidden)):
        what = f"these weights are too large for a disguise: scaled and mixed, they leave the range of {model.dtype}"
        raise UnderhoodError(what, remedy="Scale the network down first.")
    return hidden


def _disguise_diagonal(model: GatedRNN, random: np.random.Generator) -> GatedRNN:
    weights = _finite(model.arrays)
    working = (_copies, _mix_queries, _mix_memory, _spread, _share) if len(weights.left) else ()
    for change in (*working, _dead, _gauge, _permute):
        weights = change(weights, random)
    return GatedRNN.from_arrays(weights, model.dtype)


def _finite(weights: GatedArrays) -> GatedArrays:
    for field in dataclasses.fields(weights):
        require_finite("the network", getattr(weights, field.name))
    return weights


def _disguise_dense(model: DenseGatedRNN, random: np.random.Generator) -> DenseGatedRNN:
    """Permuted neurons and the gauge of both gatings: more would need a recurrence to match."""
    gatings = GatedRNN(model.input_gating, np.zeros(model.hidden, model.dtype), model.output_gating, model.readout)
    order = random.permutation(model.hidden)
    weights = _finite(gatings.arrays).keep(order)
    recurrence = np.asarray(model.recurrence, np.float64)[np.ix_(order, order)]
    require_finite("the network", recurrence)
    scale = _factors(random, model.hidden)
    recurrence = recurrence * scale[:, None] / scale[None, :]
    changed = GatedRNN.from_arrays(_rows_gauge(_neurons_gauge(weights, random, scale), random), model.dtype)
    return DenseGatedRNN(changed.input_gating, recurrence.astype(model.dtype), changed.output_gating, changed.readout)


def _disguise_stack(model: Stack, random: np.random.Generator) -> Stack:
    """A stack with other weights and the same function."""
    signal = Signal.random(random, model.cells[0].d)
    embedding = Linear(signal.of(model.embedding.weight), signal.of(model.embedding.bias))
    cells = []
    for cell in model.cells:
        cell, signal = cell.disguise_weights(signal, random)
        cells.append(cell)
    return Stack(embedding, tuple(cells), Linear(signal.read(model.readout.weight), np.asarray(model.readout.bias)))


def _factors(random: np.random.Generator, size: int) -> Float[Array, " k"]:
    """Between ½ and 2, of either sign: far enough to hide, near enough to keep the digits."""
    return random.choice([-1.0, 1.0], size) * 2.0 ** random.uniform(-1, 1, size)


def _invertible(random: np.random.Generator, size: int) -> Float[Array, "k k"]:
    first, _ = np.linalg.qr(random.standard_normal((size, size)))
    second, _ = np.linalg.qr(random.standard_normal((size, size)))
    return first * _factors(random, size) @ second


def _copies(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """left_i h_i = (1−β) left_i h_i + (β/α) left_i (α h_i)."""
    count = max(1, weights.hidden // 4)
    chosen = random.choice(weights.hidden, count, replace=False)
    scale, share = _factors(random, count), random.uniform(0.2, 0.8, (2, count))
    left, right = weights.left.copy(), weights.right.copy()
    more_left, more_right = left[:, chosen] * share[0] / scale, right[:, chosen] * share[1] / scale
    left[:, chosen] *= 1 - share[0]
    right[:, chosen] *= 1 - share[1]
    return GatedArrays(
        np.append(weights.lambda_, weights.lambda_[chosen]),
        np.concatenate([left, more_left], axis=1),
        np.concatenate([right, more_right], axis=1),
        weights.readout,
        w_m=np.concatenate([weights.w_m, weights.w_m[chosen] * scale[:, None]]),
        w_x=np.concatenate([weights.w_x, weights.w_x[chosen]]),
    )


def _mix(weights: GatedArrays, group: Array, branch: Array, other: Array, random: np.random.Generator) -> GatedArrays:
    """(branch_i·x)(other·x) for i in the group: branch → P branch, and the readings follow with P⁻¹."""
    matrix = _invertible(random, len(group))
    w_m, w_x = weights.w_m.copy(), weights.w_x.copy()
    left, right = weights.left.copy(), weights.right.copy()
    w_m[group], w_x[group] = matrix @ branch, other
    left[:, group] = np.linalg.solve(matrix.T, left[:, group].T).T
    right[:, group] = np.linalg.solve(matrix.T, right[:, group].T).T
    return replace(weights, w_m=w_m, w_x=w_x, left=left, right=right)


def _mix_queries(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """Forget neurons with a constant branch hold linear forms; any invertible mixture of them does."""
    forgets = weights.lambda_ == 0
    through_x = forgets & ~weights.w_x[:, :-1].any(axis=1)
    through_m = forgets & ~weights.w_m[:, :-1].any(axis=1) & ~through_x
    group = np.flatnonzero(through_x | through_m)
    if len(group) < 2:
        return weights
    linear = np.where(through_x[:, None], weights.w_m, weights.w_x)[group]
    constant = np.where(through_x, weights.w_x[:, -1], weights.w_m[:, -1])[group]
    one = np.zeros_like(linear)
    one[:, -1] = 1.0
    return _mix(weights, group, linear * constant[:, None], one, random)


def _mix_memory(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """Σ_j P_ij (v·x)(k_j·x) = (v·x)((P k)_i·x): memory neurons with the same w_m, as those of Figure 1."""
    keys = np.concatenate([weights.w_m, weights.lambda_[:, None]], axis=1)
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    memory = weights.lambda_ > 0
    for value in np.unique(inverse):
        group = np.flatnonzero((inverse == value) & memory)
        if len(group) > 1 and weights.w_m[group[0]].any():
            # `_mix` writes the mixed branch to w_m: which branch is which makes no difference.
            weights = _mix(weights, group, weights.w_x[group], weights.w_m[group], random)
    return weights


def _spread(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """u vᵀ as a sum of other rank-one kernels with the same readout: B.2 in the other direction."""
    lefts, rights, columns = [], [], []
    states = np.abs(weights.w_m).max(axis=1) * np.abs(weights.w_x).max(axis=1)  # about how large they get
    spread = random.random(len(weights.left)) < 0.25
    spread[random.integers(len(spread))] = True
    for j, (u, v, column) in enumerate(zip(weights.left, weights.right, weights.readout.T, strict=True)):
        if not spread[j]:
            rows = [(u, v, 1.0)]
        elif random.random() < 0.5:
            other = v * random.uniform(0.2, 0.8, len(v))  # u vᵀ = u v'ᵀ + u (v − v')ᵀ
            rows = [(u, other, 1.0), (u, v - other, 1.0)]
        else:
            # uv = ½((su + v/s)² − s²u² − v²/s²) after symmetrisation; readings of one size, or digits would be lost.
            scale = _factors(random, 1)[0] * _balance(u * states, v * states)
            a, b = scale * u, v / scale
            rows = [(a + b, a + b, 0.5), (a, a, -0.5), (b, b, -0.5)]
        for first, second, factor in rows:
            lefts.append(first)
            rights.append(second)
            columns.append(factor * column)
    return replace(weights, left=np.array(lefts), right=np.array(rights), readout=np.array(columns).T)


def _balance(first: Array, second: Array) -> float:
    """The factor that first takes, and second gives, to be of one size."""
    factor = float(np.sqrt(np.abs(second).max()) / np.sqrt(np.abs(first).max()))
    return factor if np.isfinite(factor) and factor > 0 else 1.0


def _share(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """One row twice, with the readout split between the two."""
    chosen = random.choice(len(weights.left), max(1, len(weights.left) // 8), replace=False)
    share = random.uniform(0.2, 0.8, (len(weights.readout), len(chosen)))
    readout = weights.readout.copy()
    more = readout[:, chosen] * share
    readout[:, chosen] -= more
    return replace(
        weights,
        left=np.concatenate([weights.left, weights.left[chosen]]),
        right=np.concatenate([weights.right, weights.right[chosen]]),
        readout=np.concatenate([readout, more], axis=1),
    )


def _dead(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """Neurons that are not read, neurons that hold nothing but are read, rows that do not reach the output."""
    inputs, rows = weights.w_m.shape[1], len(weights.left)
    unread, empty = int(random.integers(1, 4)), int(random.integers(1, 3))
    w_m = np.concatenate([weights.w_m, random.standard_normal((unread, inputs)), np.zeros((empty, inputs))])
    w_x = np.concatenate([weights.w_x, random.standard_normal((unread + empty, inputs))])
    lambda_ = np.append(weights.lambda_, random.choice([0.0, 0.3, 0.9, 1.0], unread + empty))

    def widened(matrix: Array) -> Array:
        return np.concatenate([matrix, np.zeros((rows, unread)), random.standard_normal((rows, empty))], axis=1)

    lost = int(random.integers(1, 4))
    left, right = widened(weights.left), widened(weights.right)
    more = random.standard_normal((2, lost, left.shape[1]))
    return GatedArrays(
        lambda_,
        np.concatenate([left, more[0]]),
        np.concatenate([right, more[1]]),
        np.concatenate([weights.readout, np.zeros((len(weights.readout), lost))], axis=1),
        w_m=w_m,
        w_x=w_x,
    )


def _gauge(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    weights = _neurons_gauge(weights, random, _factors(random, weights.hidden))
    return _rows_gauge(weights, random)


def _neurons_gauge(weights: GatedArrays, random: np.random.Generator, scale: Array) -> GatedArrays:
    """h → scale ⊙ h, the scale shared between the branches of g_in; branches swapped at random."""
    part, swap = _factors(random, len(scale)), random.random(len(scale)) < 0.5
    w_m, w_x = weights.w_m * part[:, None], weights.w_x * (scale / part)[:, None]
    return replace(
        weights,
        w_m=np.where(swap[:, None], w_x, w_m),
        w_x=np.where(swap[:, None], w_m, w_x),
        left=weights.left / scale,
        right=weights.right / scale,
    )


def _rows_gauge(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    """(αl·h)(βr·h) read with D/(αβ); branches swapped and rows permuted at random."""
    rows = len(weights.left)
    first, second, swap = _factors(random, rows), _factors(random, rows), random.random(rows) < 0.5
    left, right = weights.left * first[:, None], weights.right * second[:, None]
    order = random.permutation(rows)
    return replace(
        weights,
        left=np.where(swap[:, None], right, left)[order],
        right=np.where(swap[:, None], left, right)[order],
        readout=(weights.readout / (first * second))[:, order],
    )


def _permute(weights: GatedArrays, random: np.random.Generator) -> GatedArrays:
    return weights.keep(random.permutation(weights.hidden))
