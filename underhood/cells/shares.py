"""x_t = own_t + Σ_{s<t} past[t, s]: a signal as a sum of what each step gave to it, carried through a layer.

A layer with its gates held at their values is linear: its `_shared` says how each step's share passes through, in the
operations below, which are those of its `_scan`. What a step adds by itself, a bias for example, is its own. Activations
become factors, f(u) − f(0) = (f(u)/u) u. Where both factors of a product have shares, a ⊙ b,

    own_t = a_t ⊙ b_t,   past[t, s] = a_s ⊙ (b_t + ½ Σ_{r<t} b_r) + b_s ⊙ (a_t + ½ Σ_{r<t} a_r):

what a memory gives when the present reads it belongs to the memory, and a product of two memories to both, in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Inexact

from underhood.cells.memory import Signals, memory_scan
from underhood.cells.scores import Tile, score_tiles

if TYPE_CHECKING:
    from underhood.cells.convolution import Convolution

Signal = Inexact[np.ndarray, "t n"]
Block = Inexact[np.ndarray, "n rows columns"]
Map = Callable[[Block, slice], Block]  # shares of some rows, through what acts on each step alone


@dataclass(frozen=True)
class Past:
    """past[t, s] for s < t, a tile at a time: those of a memory or an array, each through `map`."""

    tiles: Callable[[], Iterator[Tile]]
    map: Map

    def __iter__(self) -> Iterator[Tile]:
        for rows, columns, block in self.tiles():
            yield rows, columns, self.map(block, rows)

    def then(self, map_: Map) -> Past:
        return replace(self, map=lambda block, rows: map_(self.map(block, rows), rows))


@dataclass(frozen=True)
class Shares:
    """A signal, what of it is its own step's, and what earlier steps gave (None: nothing)."""

    value: Signal
    own: Signal
    past: Past | None = None
    by_value: bool = True
    """Whether what enters a memory counts as its own step's, also where a convolution made it of several."""
    held: bool = False
    """Whether an activation that is no gate was held."""
    scores: Callable[[], Iterator[Tile]] | None = None
    """Those of the last memory, one map a head or channel."""

    @classmethod
    def of(cls, xs: Signal, *, by_value: bool) -> Shares:
        """Inputs: each its own."""
        return cls(xs, xs, by_value=by_value)

    def _each(self, function: Callable[[Signal], Signal], map_: Map) -> Shares:
        """What acts on each step alone."""
        past = None if self.past is None else self.past.then(map_)
        return replace(self, value=function(self.value), own=function(self.own), past=past)

    def linear(self, weight: Any, bias: Any = None) -> Shares:
        """W x + b."""
        dense = np.asarray(weight) if isinstance(weight, jax.Array | np.ndarray) else weight.dense()
        made = self._each(lambda signal: signal @ dense.T, lambda block, _: np.tensordot(dense, block, 1))
        return made if bias is None else made.plus(bias)

    def plus(self, constant: Any) -> Shares:
        """x + b, which belongs to its step."""
        return replace(self, value=self.value + np.asarray(constant), own=self.own + np.asarray(constant))

    def scaled(self, gain: Any) -> Shares:
        """g ⊙ x, with one g for all steps or for each."""
        gains = np.broadcast_to(np.asarray(gain), self.value.shape)
        return self._each(lambda signal: gains * signal, lambda block, rows: gains[rows].T[:, :, None] * block)

    def __add__(self, other: Shares) -> Shares:
        if self.past is None or other.past is None:
            past = self.past or other.past
        else:
            past = _together(self.past, other.past, lambda one, two, _: one + two)
        held, scores = self.held or other.held, self.scores or other.scores
        return replace(
            self, value=self.value + other.value, own=self.own + other.own, past=past, held=held, scores=scores
        )

    def activated(self, function: Callable[[Any], Any]) -> Shares:
        """f(x) with f(x) − f(0) = (f(x) − f(0))/x ⊙ x held; f(0) is its step's own."""
        zero = jnp.zeros((), self.value.dtype)
        start, slope = jax.jvp(function, (zero,), (jnp.ones_like(zero),))
        value, nought = np.asarray(function(jnp.asarray(self.value))), self.value == 0
        gains = np.where(nought, np.asarray(slope), (value - np.asarray(start)) / np.where(nought, 1, self.value))
        made = self.scaled(gains).plus(start)
        return replace(made, held=self.held or self.past is not None)

    def centred(self, heads: int) -> Shares:
        """x − mean x over each head."""
        size = self.value.shape[1] // heads
        blocks = np.eye(size, dtype=self.value.dtype) - self.value.dtype.type(1 / size)
        return self.linear(np.kron(np.eye(heads, dtype=self.value.dtype), blocks))

    def banded(self, convolution: Convolution) -> Shares:
        """A causal convolution: it spreads shares, unless values count as their own step's."""
        past = convolution.initial_past()

        def through(signal: Signal) -> Signal:
            return np.asarray(_convolve(convolution, jnp.asarray(signal), past))

        if self.past is None and self.by_value:
            value = through(self.value)
            return replace(self, value=value, own=value)
        raise NotImplementedError

    def remembered(self, q: Any, k: Any, log_decay: Any, left: Any = None, right: Any = None) -> Shares:
        """The outputs of the matrix memory with these signals that x enters, by head, as values."""
        values = jnp.asarray(self.value.reshape(len(q), q.shape[1], -1))
        total = np.asarray(_remember(Signals(q, k, values, log_decay, left, right))).reshape(self.value.shape)
        q, k, log_decay = (np.asarray(one) for one in (q, k, log_decay))
        score = np.repeat(np.sum(q * k, axis=2), values.shape[2], axis=1)

        def tiles() -> Iterator[Tile]:
            entered = self.own.T.reshape(q.shape[1], -1, 1, len(q))
            for rows, columns, scores in score_tiles(q, k, log_decay, width=values.shape[2]):
                block = scores[:, None] * entered[..., columns]
                yield rows, columns, block.reshape(-1, *block.shape[2:])

        return replace(
            self,
            value=total,
            own=score * self.own,
            past=Past(tiles, lambda block, _: block),
            scores=lambda: score_tiles(q, k, log_decay),
        )


@jax.jit
def _remember(signals: Signals) -> Any:
    sizes = (*signals.q.shape[1:], signals.v.shape[2])
    return memory_scan(jnp.zeros(sizes, jnp.result_type(*signals[:4])), signals)[0]


@jax.jit
def _convolve(convolution: Convolution, signal: Any, past: Any) -> Any:
    return convolution.scan(signal, past)[0]


def _together(one: Past, other: Past, combine: Callable[[Block, Block, slice], Block]) -> Past:
    """Two signals that came of the same memory."""
    assert one.tiles is other.tiles
    return Past(one.tiles, lambda block, rows: combine(one.map(block, rows), other.map(block, rows), rows))
