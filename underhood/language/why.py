"""logit − constants = Σ_s T[s]: which earlier tokens raised a logit, and through which layers each did.

T[s] is what changes when token s is taken out (its embedding becomes the mean of the text's): one after the other for
those that matter most, the next one always that which changes the logit most beside those that are out; then all the
others together, as integrated gradients share what is left. So the largest tokens are those whose deletion moves it.

How a token's share came there is read in one backward pass with gates, norms and softmax weights held: with g_l the
gradient by the residual stream before layer l and x_l what the stream has because of the texts' tokens, g_l[s]·x_l[s]
adds up to one number over s for each l, and table[l, s] = g_l[s]·x_l[s] − g_{l+1}[s]·x_{l+1}[s] left the place of token
s in layer l, less what came into it. What T has beyond, the token does through gates: a row of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.explain.maps import whole_number
from underhood.language.blocks import Block, Network
from underhood.layers.held import holding

Watch = Callable[[int, int], None]  # passes that are done, of how many


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much `why` measures; the numbers are those that ranked well on models trained here."""

    deleted: int = 8
    """Tokens that are taken out one after the other."""
    candidates: int = 24
    """Of them, how many are tried at each turn, those first whose deletion alone changes most."""
    steps: int = 8
    """Of the integral for the others."""
    work: float = 2.5e12
    """Multiplications that the deletions may take; on large models fewer candidates are tried."""
    batch: int = 2**21
    """Numbers of a residual stream that are run at once."""
    most: int = 5
    """Tokens of the deletion check."""
    below: float = 0.9
    """Most that a token of the others has, of the least of the largest."""
    draws: int = 20
    """Random sets of them that it is compared with."""


class Deletion(NamedTuple):
    """|Δ logit| when five tokens are taken out."""

    largest: float
    """Those with the largest contributions."""
    recent: float
    """The most recent ones."""
    random: float
    """Random ones, the mean over draws."""

    @property
    def agrees(self) -> bool:
        """Whether the largest ones matter more than both controls."""
        return self.largest > self.recent and self.largest > self.random


@dataclasses.dataclass(frozen=True)
class Why:
    """A logit (or a difference of two) as a sum over layers and tokens."""

    target: str
    against: str | None
    at: int
    logit: float
    """The number that is told apart."""
    tokens: list[str]
    layers: list[str]
    """Names of the rows: the token's own place, each layer, what goes through gates, and constants."""
    contributions: Float[np.ndarray, "layers tokens"]
    """They add up to the logit. Constants, what the model says with no token's own embedding, are spread evenly."""
    completeness: float
    """|Δ − Σ T| over Σ |T|: what the integral missed, before it was counted with the constants."""
    cancellation: float
    """Σ |contributions| over |logit − constants|: 1 where nothing cancels."""
    deletion: Deletion

    @property
    def totals(self) -> Float[np.ndarray, " tokens"]:
        """What each token contributes, over all layers, without constants."""
        return self.contributions[:-1].sum(axis=0)

    def largest(self, most: int = 5) -> list[tuple[int, str, float]]:
        """The tokens that raised the logit most.

        **Arguments:**

        - `most`: How many.

        **Returns:**

        Their places, words and contributions, the largest first.
        """
        order = np.argsort(-self.totals, kind="stable")[:most]
        return [(int(one), self.tokens[one], float(self.totals[one])) for one in order]

    def as_data(self) -> dict[str, Any]:
        """Plain JSON.

        **Returns:**

        A dictionary with the fields of this object.
        """
        names = ("target", "against", "at", "logit", "tokens", "layers", "completeness", "cancellation")
        told = {name: getattr(self, name) for name in names}
        return {**told, "contributions": self.contributions.tolist(), "deletion": self.deletion._asdict()}

    def __repr__(self) -> str:
        beside = "" if self.against is None else f" against {self.against!r}"
        words = ", ".join(f"{word!r} at {place} {value:+.2f}" for place, word, value in self.largest())
        d = self.deletion
        check = f"without these {d.largest:.2f}, without the last five {d.recent:.2f}, five random ones {d.random:.2f}"
        return f"Why {self.target!r}{beside}: {self.logit:.2f}; {words}; it moves by: {check}"


def explain(reading: Any, target: Any, at: Any, against: Any, watch: Watch | None = None, **settings: Any) -> Why:
    """`Reading.why`."""
    chosen = Settings(**settings)
    tokenizer, step = reading.model.tokenizer, reading.step(at)
    if reading._patch:
        raise UnderhoodError("why reads a text as it is, without states put in", remedy="Read it without `patch`.")
    wanted = [_number(reading, word) for word in (target, against) if word is not None]
    model = _Subject(reading, step, wanted, chosen, watch)
    table = _table(model)
    held = table.sum(axis=0)
    totals, missed, bare = _totals(model, held, chosen)
    constants = np.full(len(totals), bare / len(totals))
    rows = np.concatenate([table, (totals - held)[None], constants[None]])
    layers = ["own place", *(str(index) for index in range(reading.model.layers)), "through gates", "constants"]
    told = float(np.abs(totals).sum())
    return Why(
        target=tokenizer.words([wanted[0]])[0],
        against=tokenizer.words([wanted[1]])[0] if len(wanted) > 1 else None,
        at=step,
        logit=model.full,
        tokens=reading.tokens[: step + 1],
        layers=layers,
        contributions=rows,
        completeness=abs(missed) / max(told, np.finfo(np.float64).tiny),
        cancellation=told / max(abs(model.full - bare), np.finfo(np.float64).tiny),
        deletion=_check(model, totals, chosen),
    )


def _number(reading: Any, word: Any) -> int:
    number = whole_number(word)
    if number is None and not isinstance(word, str):
        raise UnderhoodError("expected a word, or a token's number", type(word).__name__)
    if number is None:
        return reading.model.tokenizer.token(word)
    if not 0 <= number < reading.model.vocabulary:
        raise UnderhoodError(f"expected a token from 0 to {reading.model.vocabulary - 1:,}", f"{number:,}")
    return number


class _Subject:
    """The logit as a function of the embeddings, batched; and its gradient, held or not, a block at a time."""

    def __init__(self, reading: Any, step: int, wanted: list[int], settings: Settings, watch: Watch | None) -> None:
        self.network: Network = reading.model.network
        self.xs = np.asarray(reading.stream[0][: step + 1])
        self.stream = reading.stream[:, : step + 1]
        self.wanted = jnp.asarray(wanted)
        self.baseline = self.xs.mean(axis=0)
        length, d = self.xs.shape
        self.count = max(1, settings.batch // (length * d * 4))
        require_memory(4 * length * d * (4 * len(self.network.blocks) + 40), f"why, of {length:,} tokens")
        work = 2.0 * (self.network.parameters - self.network.embedding.size) * length
        self.passes = int(np.clip(settings.work / max(work, 1), 24, settings.deleted * settings.candidates + length))
        self.watch, self.done, self.expected = watch, 0, self.passes + 3 * settings.steps + settings.draws + 6
        self.full = float(self.values(self.xs[None])[0])

    def without(self, tokens: Any) -> Float[np.ndarray, "t d"]:
        changed = self.xs.copy()
        changed[np.asarray(tokens, int)] = self.baseline
        return changed

    def values(self, many: Float[np.ndarray, "b t d"]) -> Float[np.ndarray, " b"]:
        """The number for each of some sequences of embeddings."""
        found: list[np.ndarray] = []
        for start in range(0, len(many), self.count):
            x = jnp.asarray(many[start : start + self.count])
            missing = self.count - len(x) if len(many) > self.count else 0
            x = jnp.pad(x, ((0, missing), (0, 0), (0, 0)))  # as many each time, for one compilation
            for block in self.network.blocks:
                x = _run_many(block, x)
            found.append(np.asarray(_scores(self.network, x[:, -1], self.wanted))[: self.count - missing])
            self._tell(min(self.count, len(many) - start))
        return np.concatenate(found)[: len(many)]

    def effects(self, sets: list[Any]) -> Float[np.ndarray, " n"]:
        """What is lost without each of some sets of tokens."""
        return self.full - self.values(np.stack([self.without(one) for one in sets]))

    def slope(self, x: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t d"]:
        """The gradient by the embeddings."""
        stream = [jnp.asarray(x)]
        for block in self.network.blocks:
            stream.append(_run_many(block, stream[-1][None])[0])
        backwards = _score_slope(self.network, stream[-1], self.wanted, False)
        for block, before in zip(self.network.blocks[::-1], stream[-2::-1], strict=True):
            backwards = _back(block, before, backwards, False)
        self._tell(3)
        return np.asarray(backwards)

    def _tell(self, passes: int) -> None:
        self.done += passes
        if self.watch is not None:
            self.watch(min(self.done, self.expected), self.expected)


def _totals(
    model: _Subject, likely: Float[np.ndarray, " t"], settings: Settings
) -> tuple[Float[np.ndarray, " t"], float, float]:
    """T, what the integral missed, and the logit without anything of the text; `likely` says whom to try first."""
    length = len(model.xs)
    first = min(length, max(settings.candidates // 2, model.passes // 2))
    later = max(2, min(settings.candidates, (model.passes - first) // settings.deleted))
    candidates = np.argsort(-np.abs(likely), kind="stable")[:first].tolist()
    totals, out, lost = np.zeros(length), [], 0.0
    for turn in range(min(settings.deleted, first)):
        tried = [one for one in candidates if one not in out][: later if turn else first]
        effects = model.effects([[*out, one] for one in tried])
        if turn == 0:
            candidates = [tried[one] for one in np.argsort(-effects, kind="stable")]
        best = int(np.argmax(effects))
        if effects[best] <= lost:
            break
        totals[tried[best]] = effects[best] - lost
        out, lost = [*out, tried[best]], float(effects[best])
    start, end = model.without(out), model.without(range(length))
    bare = float(model.values(end[None])[0])
    shares = (np.arange(settings.steps) + 0.5) / settings.steps
    slope = np.mean([model.slope(end + share * (start - end)) for share in shares], axis=0)
    others = np.sum(slope * (start - end), axis=1)
    missed = model.full - lost - bare - float(others.sum())
    # Faded all together, tokens do more than any of them does by itself: what is beyond belongs to none of them.
    least = min(sorted(totals[out])[-settings.most :], default=np.inf)
    others *= min(1.0, settings.below * least / max(float(np.abs(others).max()), np.finfo(np.float64).tiny))
    totals += others
    return totals, missed, model.full - float(totals.sum())


def _table(model: _Subject) -> Float[np.ndarray, "rows t"]:
    """What stays at its place, then what leaves each place in each layer, with gates held."""
    change = jnp.asarray(model.xs - model.baseline)
    changes = [change]
    for block, x in zip(model.network.blocks, model.stream[:-1], strict=True):
        change = _forth(block, jnp.asarray(x), change)
        changes.append(change)
    backwards = _score_slope(model.network, jnp.asarray(model.stream[-1]), model.wanted, True)
    at = len(model.xs) - 1
    flows = [np.asarray(jnp.sum(backwards * changes[-1], axis=1), np.float64)]
    for index in range(len(model.network.blocks) - 1, -1, -1):
        backwards = _back(model.network.blocks[index], jnp.asarray(model.stream[index]), backwards, True)
        flows.append(np.asarray(jnp.sum(backwards * changes[index], axis=1), np.float64))
    flows = flows[::-1]
    table = np.stack([before - after for before, after in itertools.pairwise(flows)])
    own = np.zeros(at + 1)
    own[at] = flows[0][at]
    table[:, at] = 0
    return np.concatenate([own[None], table])


def _check(model: _Subject, totals: Float[np.ndarray, " t"], settings: Settings) -> Deletion:
    length, most = len(totals), min(settings.most, len(totals))
    random = np.random.default_rng(0)
    draws = [random.choice(length, most, replace=False) for _ in range(settings.draws)]
    largest = np.argsort(-totals, kind="stable")[:most]
    moved = np.abs(model.effects([largest, np.arange(length - most, length), *draws]))
    return Deletion(float(moved[0]), float(moved[1]), float(moved[2:].mean()))


@eqx.filter_jit
def _run_many(block: Block, xs: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    return jax.vmap(block)(xs)


def _score(network: Network, x: Float[Array, " d"], wanted: Int[Array, " n"]) -> Float[Array, ""]:
    rows = network.logits(x[None])[0][wanted]
    return rows[0] if len(rows) == 1 else rows[0] - rows[1]


@eqx.filter_jit
def _scores(network: Network, xs: Float[Array, "b d"], wanted: Int[Array, " n"]) -> Float[Array, " b"]:
    return jax.vmap(lambda x: _score(network, x, wanted))(xs)


@eqx.filter_jit
def _score_slope(network: Network, x: Float[Array, "t d"], wanted: Int[Array, " n"], held: bool) -> Float[Array, "t d"]:
    def last(x: Array) -> Array:
        return _score(network, x[-1], wanted)

    return _maybe_held(jax.grad(last), held)(x)


@eqx.filter_jit
def _back(block: Block, x: Float[Array, "t d"], backwards: Float[Array, "t d"], held: bool) -> Float[Array, "t d"]:
    return _maybe_held(lambda x: jax.vjp(block, x)[1](backwards)[0], held)(x)


@eqx.filter_jit
def _forth(block: Block, x: Float[Array, "t d"], change: Float[Array, "t d"]) -> Float[Array, "t d"]:
    return _maybe_held(lambda x: jax.jvp(block, (x,), (change,))[1], True)(x)


def _maybe_held(function: Callable[[Array], Array], held: bool) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        if not held:
            return function(x)
        with holding("halves"):
            return function(x)

    return run
