"""x_t = own_t + Σ_{s<t} past[t, s]: a signal as a sum of what each step gave to it, carried through a layer.

A layer with its gates held at their values is linear: its `propagate_contributions` says how each step's share passes
through, in the operations below, which are those of its `_scan`. What a step adds by itself, such as a bias, is its
own. Activations become factors, f(u) − f(0) = ((f(u) − f(0))/u) u. Where both factors of a product a ⊙ b have shares,

    own_t = a_t ⊙ b_t,   past[t, s] = a_s ⊙ (b_t + ½ Σ_{r<t} b_r) + b_s ⊙ (a_t + ½ Σ_{r<t} a_r):

what a memory gives when the present reads it belongs to the memory, and a product of two memories to both, in halves.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from underhood.core.memory import require_memory
from underhood.layers.convolution import Convolution
from underhood.layers.linear import dense
from underhood.layers.memory import Signals
from underhood.layers.scores import TILE, Make, Tile, in_parallel, remember, score_tiles

Signal = Inexact[np.ndarray, "t n"]
Block = Inexact[np.ndarray, "n rows columns"]
ROWS = 64  # of a product that skips what is above the diagonal
Map = Callable[[Block, slice], Block]  # shares of some rows, through what acts on each step alone


@dataclass(frozen=True)
class Past:
    """past[t, s] for s < t, a tile at a time: those of a memory or an array, each through `map`."""

    tiles: Callable[[], Iterator[Tile]]
    map: Map = lambda block, _: block
    rescaled: Callable[[Signal], Past] | None = None
    """The same with a gain for each row, where the tiles can be made so."""

    @classmethod
    def of_scores(cls, signals: Signals) -> Past:
        """Those of a memory whose keys are times its values, one a head: gains go into the queries."""

        def rescaled(gains: Signal) -> Past:
            return cls.of_scores(signals._replace(q=signals.q * gains[:, :, None]))

        return cls(functools.partial(score_tiles, signals), rescaled=rescaled)

    @classmethod
    def of(cls, array: Inexact[np.ndarray, "n t t"]) -> Past:
        return cls(lambda: _rows(array))

    def then(self, map_: Map) -> Past:
        return Past(self.tiles, _after(self.map, map_))

    def array(self, size: int, length: int, dtype: np.dtype) -> Inexact[np.ndarray, "n t t"]:
        """All of it."""
        require_memory(2 * size * length * length * dtype.itemsize, f"the shares of {length} steps in {size} channels")
        whole = np.zeros((size, length, length), dtype)

        def fill(rows: slice, columns: slice, make: Make) -> None:
            whole[:, rows, columns] = self.map(make(), rows)

        deque(in_parallel(fill, self.tiles()), maxlen=0)
        return whole


NOTHING = Past(lambda: iter(()))


@dataclass(frozen=True)
class Scores:
    """α[t, s] of a memory, one map a head, or a channel where each has a memory of its own."""

    own: Inexact[np.ndarray, "t h"]
    past: Callable[[], Iterator[Tile]]
    sort: Literal["head", "channel"]


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
    scores: Scores | None = None
    """Those of the memory that it came through; None where there was none, or more than one."""
    factors: tuple[Shares, Shares, Map] | None = None
    """Those of the product that it came of, and what became of it since."""

    @classmethod
    def of(cls, xs: Signal, *, by_value: bool) -> Shares:
        """Inputs: each its own."""
        return cls(xs, xs, by_value=by_value)

    @property
    def signal(self) -> Inexact[Array, "t n"]:
        """The value, for jax."""
        return jnp.asarray(self.value)

    def _each(self, function: Callable[[Signal], Signal], map_: Map) -> Shares:
        """What acts on each step alone."""
        past = None if self.past is None else self.past.then(map_)
        factors = None if self.factors is None else (*self.factors[:2], _after(self.factors[2], map_))
        return replace(self, value=function(self.value), own=function(self.own), past=past, factors=factors)

    def linear(self, weight: Any, bias: Any = None) -> Shares:
        """W x + b."""
        matrix = dense(weight)
        made = self._each(lambda signal: signal @ matrix.T, lambda block, _: np.tensordot(matrix, block, 1))
        return made if bias is None else made.plus(bias)

    def real(self) -> Shares:
        return replace(self._each(np.real, lambda block, _: np.real(block)), scores=None)

    def plus(self, constant: Any) -> Shares:
        """x + b, which belongs to its step."""
        return replace(self, value=self.value + np.asarray(constant), own=self.own + np.asarray(constant))

    def scaled(self, gain: Any) -> Shares:
        """g ⊙ x, with one g for all steps or for each."""
        gains = np.broadcast_to(np.asarray(gain), self.value.shape)
        made = self._each(lambda signal: gains * signal, lambda block, rows: gains[rows].T[:, :, None] * block)
        known = self.past is not None and self.past.rescaled
        return replace(made, past=known(gains)) if known else made

    def centred(self, heads: int) -> Shares:
        """x − mean x over each head."""
        size = self.value.shape[1] // heads
        blocks = np.eye(size, dtype=self.value.dtype) - self.value.dtype.type(1 / size)
        return self.linear(np.kron(np.eye(heads, dtype=self.value.dtype), blocks))

    def __add__(self, other: Shares) -> Shares:
        if self.past is None or other.past is None:
            past = self.past or other.past
        else:
            past = self._with(other, lambda one, two, _: one + two)
        return replace(
            self,
            value=self.value + other.value,
            own=self.own + other.own,
            past=past,
            held=self.held or other.held,
            scores=self.scores or other.scores,
        )

    def times(self, other: Shares) -> Shares:
        """x ⊙ y, by the rule above."""
        if self.past is None or other.past is None:
            return self.scaled(other.value) if other.past is None else other.scaled(self.value)
        gain_one, gain_other = ((one.own + (one.value - one.own) / 2).T[:, :, None] for one in (self, other))
        past = self._with(other, lambda one, two, rows: gain_other[:, rows] * one + gain_one[:, rows] * two)
        value, own, held = self.value * other.value, self.own * other.own, self.held or other.held
        factors = self, other, lambda block, _: block
        return replace(self, value=value, own=own, past=past, held=held, scores=None, factors=factors)

    def pairs(self, t: int) -> Inexact[np.ndarray, "n r s"]:
        """a_r ⊙ b_s of the product at step t that this came of, through what followed it."""
        assert self.factors is not None
        *factors, after = self.factors
        one, two = (factor.row(t) for factor in factors)
        products = one[:, :, None] * two[:, None]
        return after(products.reshape(len(products), 1, -1), slice(t, t + 1)).reshape(-1, t + 1, t + 1)

    def row(self, t: int) -> Inexact[np.ndarray, "n s"]:
        """What steps 0 … t gave to step t."""
        row = np.zeros((self.own.shape[1], t + 1), self.own.dtype)
        row[:, t] = self.own[t]
        past = self.past or NOTHING
        for rows, columns, make in past.tiles():
            if rows.start <= t < rows.stop:
                here = make()[:, t - rows.start : t - rows.start + 1, : t + 1 - columns.start]
                row[:, columns] += past.map(here, slice(t, t + 1))[:, 0]
        return row

    def _with(self, other: Shares, combine: Callable[[Block, Block, slice], Block]) -> Past:
        """The shares of a sum or product of two signals that have some."""
        one, two = self.past, other.past
        assert one is not None and two is not None
        if one.tiles is two.tiles:
            return Past(one.tiles, lambda block, rows: combine(one.map(block, rows), two.map(block, rows), rows))
        size = self.value.shape[1]
        both = np.concatenate([self.array(), other.array()])
        return Past(lambda: _rows(both), lambda block, rows: combine(block[:size], block[size:], rows))

    def activated(self, function: Callable[[Any], Any]) -> Shares:
        """f(x) with f(x) − f(0) = (f(x) − f(0))/x ⊙ x held; f(0) is its step's own."""
        at_zero, gain = _secant(function, np.zeros_like(self.value), self.value)
        return replace(self.scaled(gain).plus(at_zero), held=self.held or self.past is not None)

    def opened(self, function: Callable[[Any], Any]) -> Shares:
        """f(x) as a factor: f of what is its own step's, and the rest in the shares of the past of x."""
        own, gain = _secant(function, self.own, self.value)
        opened = self.scaled(gain)
        value = opened.value - opened.own + np.asarray(own)
        return replace(opened, value=value, own=np.asarray(own), held=self.held or self.past is not None)

    def banded(self, convolution: Convolution) -> Shares:
        """A causal convolution, which spreads shares, unless values count as their own step's."""
        value = np.asarray(_convolve(convolution, self.signal))
        if self.past is None and self.by_value:
            return replace(self, value=value, own=value)
        whole, kernel = self.array(own=True), np.asarray(convolution.weight)[:, ::-1, None, None]
        spread = kernel[:, 0] * whole
        for lag in range(1, min(convolution.width, len(value))):
            spread[:, lag:] += kernel[:, lag] * whole[:, :-lag]
        made = self.made_of(value, spread)
        return made if convolution.bias is None else replace(made, own=made.own + np.asarray(convolution.bias))

    def remembered(self, q: Any, k: Any, log_decay: Any, left: Any = None, right: Any = None) -> Shares:
        """The outputs of the matrix memory with these signals that x enters, by head, as values."""
        values: Any = self.value.reshape(len(q), q.shape[1], -1)
        q, k, log_decay, left, right = (
            None if one is None else np.asarray(one) for one in (q, k, log_decay, left, right)
        )
        signals = Signals(q, k, values, log_decay, left, right)
        total, tiles = np.asarray(remember(signals)).reshape(self.value.shape), functools.partial(score_tiles, signals)
        scores = np.sum(signals.q * signals.k, axis=2)
        own, sort = np.repeat(scores, values.shape[2], axis=1) * self.own, "channel" if values.shape[2] == 1 else "head"
        if self.past is None:
            if values.shape[2] == 1:  # nothing but another key
                past = Past.of_scores(signals._replace(k=signals.k * self.own[:, :, None]))
            else:
                past = Past(functools.partial(self._by_head, tiles, values.shape[2]))
            return replace(self, value=total, own=own, past=past, scores=Scores(scores, tiles, sort), factors=None)
        passed = Past(tiles).array(q.shape[1], len(q), np.asarray(scores).dtype)
        passed[:, np.arange(len(q)), np.arange(len(q))] = scores.T
        whole = self.array(own=True).reshape(q.shape[1], -1, len(q), len(q))
        made = np.zeros(whole.shape, np.result_type(whole, passed))

        def fill(start: int, stop: int) -> None:
            np.matmul(passed[:, None, start:stop, :stop], whole[:, :, :stop, :stop], out=made[:, :, start:stop, :stop])

        deque(in_parallel(fill, ((start, min(start + ROWS, len(q))) for start in range(0, len(q), ROWS))), maxlen=0)
        return self.made_of(total, made.reshape(-1, len(q), len(q)))

    def _by_head(self, scores: Callable[..., Iterator[Tile]], width: int) -> Iterator[Tile]:
        """Scores times values."""
        values = self.own.T.reshape(-1, width, 1, len(self.own))

        def times(make: Make, columns: slice) -> Block:
            block = make()[:, None] * values[..., columns]
            return block.reshape(-1, *block.shape[2:])

        for rows, columns, make in scores(width=width):
            yield rows, columns, functools.partial(times, make, columns)

    def accumulated(self, log_factors: Any) -> Shares:
        """h_t = a_t ⊙ h_{t-1} + x_t: memories of one number."""
        ones = np.ones((*self.value.shape, 1), self.value.dtype)
        return self.remembered(ones, ones, np.broadcast_to(np.asarray(log_factors), self.value.shape))

    def recurrent(self, keep: Any, left: Any, matrix: Any, right: Any, *, held: bool = False) -> Shares:
        """h_t = keep_t ⊙ h_{t-1} + left_t ⊙ V (right_t ⊙ h_{t-1}) + x_t; `held` where an activation is in there."""
        keep, left, right = (np.broadcast_to(np.asarray(one), self.value.shape) for one in (keep, left, right))
        whole, matrix = self.array(own=True), np.asarray(matrix)
        value, state = np.zeros_like(self.value), np.zeros(self.value.shape[1:], self.value.dtype)
        for t in range(len(value)):
            state = value[t] = keep[t] * state + left[t] * (matrix @ (right[t] * state)) + self.value[t]
            if t > 0:
                before = whole[:, t - 1, :t]
                kept = left[t][:, None] * (matrix @ (right[t][:, None] * before))
                whole[:, t, :t] += keep[t][:, None] * before + kept
        return replace(self.made_of(value, whole), held=self.held or held)

    def array(self, *, own: bool = False) -> Inexact[np.ndarray, "n t t"]:
        """Shares of the past, and with `own` those of the present on the diagonal."""
        length, size = self.value.shape
        whole = (self.past or NOTHING).array(size, length, self.own.dtype)
        if own:
            whole[:, np.arange(length), np.arange(length)] = self.own.T
        return whole

    def made_of(self, value: Signal, whole: Inexact[np.ndarray, "n t t"]) -> Shares:
        """Another signal, with its own shares on the diagonal of `whole`, which it keeps."""
        step = np.arange(len(value))
        own = whole[:, step, step].T.copy()
        whole[:, step, step] = 0
        return replace(self, value=value, own=own, past=Past.of(whole), scores=None, factors=None)


def _after(first: Map, second: Map) -> Map:
    return lambda block, rows: second(first(block, rows), rows)


def _rows(array: Inexact[np.ndarray, "n t t"]) -> Iterator[Tile]:
    count = max(1, TILE // max(1, array[:, 0].nbytes))
    for start in range(0, array.shape[1], count):
        rows = slice(start, min(start + count, array.shape[1]))
        yield rows, slice(0, rows.stop), functools.partial(array.__getitem__, (slice(None), rows, slice(rows.stop)))


@functools.partial(jax.jit, static_argnums=0)
def _secant(function: Callable[[Any], Any], start: Any, to: Any) -> tuple[Any, Any]:
    """f(y), and (f(x) − f(y))/(x − y), f'(y) where they are one."""
    base, slope = jax.jvp(function, (start,), (jnp.ones_like(start),))
    run = to - start
    return base, jnp.where(run == 0, slope, (function(to) - base) / jnp.where(run == 0, 1, run))


@jax.jit
def _convolve(convolution: Convolution, signal: Any) -> Any:
    return convolution.scan(signal, convolution.initial_past())[0]
