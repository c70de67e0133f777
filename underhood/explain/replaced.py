"""y_t − y_t(S): what changes in an output when the inputs of some steps are replaced, by deletion or by Shapley's rule.

    deletion   c[t, s] = y_t − y_t({s})
    shapley    the mean, over random orders, of what step s adds to the steps before it in the order

For linear attention, deleting s < t changes y_t by exactly v_s (k_s · q_t). The own step is the one that asks: what is
left of y_t when every earlier step is deleted is v_t (k_t · q_t). So where the deletions of earlier steps add up, as
they do in attention, the own share is what they leave, and the map is the attention map. Where they do not, steps stand
in for one another, and the own share is a deletion, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.core.model import AbstractModel

AT_ONCE = 2**27  # bytes of the sequences, and of what a layer makes of them, that run together
LAYERS_WIDE = 16  # arrays as wide as the model that a run needs
ADDS_UP = 0.02  # of all that is added: the gap below which deletions of earlier steps add up
LONG, QUARTERS = 128, 4  # from so many steps on, runs begin at the last quarter before what they replace; each compiles
DRAWS = 8  # baselines out of given sequences
PERMUTATIONS = 20  # with each of them, its reverse

Progress = Callable[[int, int], None]


def baseline_of(baseline: Any, xs: Float[np.ndarray, "t d"], seed: int = 0) -> Float[np.ndarray, "draws d"]:
    """What a step is replaced by: zeros, the sequence's mean, a vector, or steps drawn from given sequences."""
    d = xs.shape[1]
    if isinstance(baseline, str):
        known = {"zero": np.zeros((1, d), xs.dtype), "mean": xs.mean(axis=0, keepdims=True)}
        if baseline not in known:
            raise UnderhoodError(
                "expected a baseline of zero, mean, a vector or sequences to draw from", repr(baseline)
            )
        return known[baseline]
    rule = f"expected a baseline of zero, mean, a vector of {d} numbers or sequences (b, t, {d})"
    try:
        whole = [np.asarray(one, xs.dtype) for one in baseline] if isinstance(baseline, list | tuple) else baseline
        ragged = isinstance(whole, list) and whole and all(one.ndim == 2 for one in whole)
        array = np.concatenate(whole) if ragged else np.asarray(whole, xs.dtype)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UnderhoodError(rule, type(baseline).__name__) from None
    if array.ndim == 0 or array.shape[-1] != d or array.size == 0:
        raise UnderhoodError(rule, f"shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise UnderhoodError("NaN or infinite numbers in the baseline")
    steps = array.reshape(-1, d)
    if len(steps) <= 1 or array.ndim == 1:
        return steps
    return steps[np.random.default_rng(seed).choice(len(steps), min(DRAWS, len(steps)), replace=False)]


class Runs:
    """Outputs of a model at some rows for many versions of a sequence, as many at once as fit."""

    def __init__(
        self,
        model: AbstractModel,
        xs: Float[np.ndarray, "t d"],
        state: Any,
        rows: tuple[int, ...],
        directions: Float[np.ndarray, "rows d_out"] | None = None,
    ) -> None:
        self.model, self.xs, self.state, self.rows = model, xs, state, np.array(rows)
        self.directions = directions
        self.outputs = np.asarray(_scan_all(model, xs[None], state, self.rows))[0]
        self.size = model.d_out if directions is None else 1
        states = sum(np.size(leaf) for leaf in jax.tree.leaves(state))
        each = (len(xs) * max(model.d, model.d_out) * LAYERS_WIDE + 4 * states) * xs.itemsize
        require_memory(2 * each, f"one run of {len(xs)} steps")
        self.count = max(1, min(AT_ONCE // each, 512))

    def run(self, versions: Float[np.ndarray, "n t d"]) -> Float[np.ndarray, "n rows size"]:
        """Of each version, padded to as many as run at once: one compilation."""
        found = []
        count = min(self.count, 1 << (len(versions) - 1).bit_length())
        for start in range(0, len(versions), count):
            some = versions[start : start + count]
            padded = np.concatenate([some, np.broadcast_to(self.xs, (count - len(some), *self.xs.shape))])
            found.append(self._picked(_scan_all(self.model, padded, self.state, self.rows))[: len(some)])
        return np.concatenate(found)

    def _picked(self, outputs: Any, rows: Any = slice(None)) -> Float[np.ndarray, "n rows size"]:
        picked = np.asarray(outputs)
        return picked if self.directions is None else np.einsum("nrd,rd->nr", picked, self.directions[rows])[..., None]

    def masked(self, kept: np.ndarray, baselines: Float[np.ndarray, "draws d"]) -> Float[np.ndarray, "n rows size"]:
        """Outputs with only the steps where `kept` (n, t) holds as they are; the mean over the baselines."""
        total = np.zeros((len(kept), len(self.rows), self.size))
        for start in range(0, len(kept), self.count):
            some = kept[start : start + self.count]
            for base in baselines:
                total[start : start + self.count] += self.run(np.where(some[:, :, None], self.xs, base))
        return total / len(baselines)

    def deletions(
        self, baselines: Float[np.ndarray, "draws d"], progress: Progress | None = None
    ) -> Iterator[tuple[np.ndarray, Float[np.ndarray, "n rows size"]]]:
        """(steps, what replacing each of them changes), some steps at a time; what was before them runs once."""
        self._sums, self._sizes = np.zeros(self.outputs.shape), np.zeros(len(self.rows))
        last = int(self.rows.max()) + 1
        state, whole, begin = self.state, self.xs[:last], 0
        count = min(self.count, last)
        for start in range(0, last, count):
            quarter = start * QUARTERS // last * last // QUARTERS if last >= LONG else 0
            if quarter > begin:
                state, begin = _state_after(self.model, whole[begin:quarter], state), quarter
            steps = np.arange(start, min(start + count, last))
            later = np.flatnonzero(self.rows >= begin)
            total = np.zeros((len(steps), *self.outputs.shape))
            for base in baselines:
                versions = np.repeat(whole[None, begin:], count, axis=0)
                versions[np.arange(len(steps)), steps - begin] = base
                ran = np.asarray(_scan_all(self.model, versions, state, self.rows[later] - begin))
                total[:, later] += (self.outputs[later] - ran[: len(steps)]) / len(baselines)
            earlier = np.where((steps[:, None] < self.rows)[:, :, None], total, 0)
            self._sums += earlier.sum(axis=0)
            self._sizes += np.linalg.norm(earlier, axis=2).sum(axis=0)
            yield steps, self._picked(total)
            if progress is not None:
                progress(int(steps[-1]) + 1, last)

    def own(self, plain: np.ndarray, baselines: Float[np.ndarray, "draws d"]) -> Float[np.ndarray, "rows size"]:
        """After `deletions`: what those of earlier steps leave where they add up, and `plain` in the other rows."""
        alone = np.zeros(self.outputs.shape)
        for base in baselines:
            alone += np.asarray(_alone(self.model, self.xs, base, self.state))[self.rows] / len(baselines)
        left = self.outputs - self._sums
        gaps, sizes = np.linalg.norm(left - alone, axis=1), self._sizes + np.linalg.norm(self.outputs, axis=1)
        return np.where((gaps <= ADDS_UP * sizes)[:, None], self._picked(left[None])[0], plain)


def shapley(
    runs: Runs, baselines: np.ndarray, permutations: int, seed: int, progress: Progress | None = None
) -> tuple[Float[np.ndarray, "t rows n"], Float[np.ndarray, "t rows"]]:
    """Contributions of each step, and the standard error of their length, from orders in pairs with their reverse."""
    random, length = np.random.default_rng(seed), len(runs.xs)
    total = np.zeros((length, len(runs.rows), runs.size))
    squares = np.zeros_like(total)
    for index in range(permutations):
        order = random.permutation(length)
        pair = np.zeros_like(total)
        for way in (order, order[::-1]):
            rank = np.argsort(way)
            kept = rank[None] < np.arange(length + 1)[:, None]  # row k: the first k of the order
            pair[way] += np.diff(runs.masked(kept, baselines), axis=0) / 2
        total += pair
        squares += pair**2
        if progress is not None:
            progress(index + 1, permutations)
    mean = total / permutations
    spread = np.maximum(squares / permutations - mean**2, 0).sum(axis=2) / max(permutations - 1, 1)
    return mean, np.sqrt(spread)


@eqx.filter_jit
def _scan_all(model: AbstractModel, versions: Any, state: Any, rows: Any) -> Float[Array, "n rows d_out"]:
    return jax.vmap(lambda xs: model._scan(jnp.asarray(xs), state)[0][rows])(jnp.asarray(versions))


@eqx.filter_jit
def _state_after(model: AbstractModel, xs: Any, state: Any) -> Any:
    return model._scan(jnp.asarray(xs), state)[1]


@eqx.filter_jit
def _alone(model: AbstractModel, xs: Any, base: Any, state: Any) -> Float[Array, "t d_out"]:
    def body(state: Any, x: Array) -> tuple[Any, Array]:
        return model._step(state, jnp.asarray(base))[0], model._step(state, x)[1]

    return jax.lax.scan(body, state, jnp.asarray(xs))[1]
