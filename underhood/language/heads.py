"""What each head does: previous token, induction, first token, how far it reaches, and what its removal costs.

On random tokens that repeat, the token to predict is the one after the last time that this token came. A head that
does induction takes from there: from place t − period + 1. Its score is the share of its contributions at t that come
from there, the mean over the repeated part; those of the previous and of the first token are made the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from underhood.algebra.statistics import rank_correlation
from underhood.core.errors import UnderhoodError
from underhood.explain.maps import AttentionMap
from underhood.language.groups import heads_of, without
from underhood.language.maps import map_of

Watch = Callable[[int, int], None]  # heads that are done, of how many
COLUMNS = ("previous", "induction", "first", "reach", "cost")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The repeated sequence, and how much of it is measured."""

    period: int = 24
    """Random tokens before they come again."""
    times: int = 3
    """How often they come."""
    sequences: int = 4
    """Repeated sequences, for means."""
    tokens: tuple[int, ...] | None = None
    """Tokens to draw from; the tokens of the text, or all of them, unless given."""
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Head:
    """Shares of a head's contributions, from 0 to 1, on the repeated sequence; `on_text` has the same on the text."""

    layer: int
    head: int
    previous: float
    induction: float
    first: float
    reach: float
    """Mean distance, in tokens, weighted by the contributions."""
    cost: float
    """How much the loss on the repeated part rises, in nats a token, when the head's contributions are removed."""
    on_text: tuple[float, float, float] | None = None
    """Previous, first and reach on the text."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """All heads of a model, layer by layer."""

    rows: tuple[Head, ...]
    loss: float
    """Nats a token on the repeated part, with all heads."""
    first_loss: float
    """Nats a token where nothing has come before."""

    @property
    def agreement(self) -> float:
        """Rank correlation between induction scores and costs: 1 where the heads named are those that matter."""
        if len(self.rows) < 3:
            return float("nan")
        scores, costs = ([getattr(row, name) for row in self.rows] for name in ("induction", "cost"))
        return rank_correlation(scores, costs, range(len(scores))).value

    def best(self, column: str = "induction", most: int = 3) -> list[Head]:
        """The heads with the largest value in a column.

        **Arguments:**

        - `column`: previous, induction, first, reach or cost.
        - `most`: How many.

        **Returns:**

        Rows of the table, the largest first.
        """
        if column not in COLUMNS:
            raise UnderhoodError(f"expected a column of {', '.join(COLUMNS)}", repr(column))
        return sorted(self.rows, key=lambda row: -getattr(row, column))[:most]

    def as_data(self) -> dict[str, Any]:
        """Plain JSON.

        **Returns:**

        A dictionary with the losses, and the rows as dictionaries.
        """
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"loss": self.loss, "first_loss": self.first_loss, "agreement": self.agreement, "rows": rows}

    def __repr__(self) -> str:
        head = "layer head  " + "  ".join(f"{name:>9}" for name in COLUMNS)
        lines = [
            f"{row.layer:5d} {row.head:4d}  " + "  ".join(f"{getattr(row, name):9.3f}" for name in COLUMNS)
            for row in self.rows
        ]
        said = f"repeated part {self.loss:.2f} nats a token, new tokens {self.first_loss:.2f}"
        return "\n".join([said, head, *lines])


def study(model: Any, text: str | None, watch: Watch | None = None, **settings: Any) -> Heads:
    """`LanguageModel.heads`."""
    chosen = Settings(**settings)
    read = None if text is None else model.read(text)
    readings = [model.read_tokens(tokens) for tokens in _sequences(model, read, chosen)]
    whole = np.mean([_repeated_loss(one, chosen.period) for one in readings])
    new = np.mean([one.losses[: chosen.period - 1].mean() for one in readings])
    places = [(layer, head) for layer in range(model.layers) for head in range(heads_of(model.mixer(layer)))]
    rows = []
    for index, (layer, head) in enumerate(places):
        scores = np.mean([_scores(map_of(one, layer, head, {}), chosen.period) for one in readings], axis=0)
        told = None if read is None else _scores(map_of(read, layer, head, {}), None)
        changed = _removed(model, layer, head)
        lost = np.mean([_repeated_loss(changed.read_tokens(one.numbers), chosen.period) for one in readings])
        on_text = None if told is None else (float(told[0]), float(told[2]), float(told[3]))
        rows.append(Head(layer, head, *map(float, scores), cost=float(lost - whole), on_text=on_text))
        if watch is not None:
            watch(index + 1, len(places))
    return Heads(tuple(rows), float(whole), float(new))


def _sequences(model: Any, read: Any, settings: Settings) -> list[np.ndarray]:
    if settings.period < 3 or settings.times < 2 or settings.sequences < 1:
        raise UnderhoodError("expected a period of 3 or more, twice or more, in one sequence or more", repr(settings))
    random = np.random.default_rng(settings.seed)
    tokens = np.arange(model.vocabulary) if read is None else np.unique(read.numbers)
    tokens = tokens if settings.tokens is None else np.asarray(settings.tokens)
    if len(tokens) < settings.period:
        tokens = np.arange(model.vocabulary)
    drawn = (random.choice(tokens, settings.period, replace=False) for _ in range(settings.sequences))
    return [np.tile(one, settings.times) for one in drawn]


def _removed(model: Any, layer: int, head: int) -> Any:
    """The model without a head's contributions."""
    block = model.network.blocks[layer]
    where = block.mixing
    changed = eqx.tree_at(lambda one: one.branches[where].layer, block, without(block.mixer, head))
    network = eqx.tree_at(lambda one: one.blocks[layer], model.network, changed)
    return model.with_network(network)


def _repeated_loss(reading: Any, period: int) -> float:
    """Nats a token where the token to predict has come before."""
    return float(reading.losses[period:].mean())


def _scores(found: AttentionMap, period: int | None) -> Float[np.ndarray, " 4"]:
    """Shares of the previous token, of induction and of the first token, and mean distance."""
    sizes = np.abs(found.weights).sum(axis=0)
    length = len(sizes)
    steps = np.arange(length)
    start = 1 if period is None else period
    rows = sizes[start:] / np.maximum(sizes[start:].sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    at = steps[start:]
    reach = float(np.mean(np.sum(rows * np.abs(at[:, None] - steps[None]), axis=1)))
    previous, first = rows[np.arange(len(at)), at - 1].mean(), rows[:, 0].mean()
    induction = 0.0
    if period is not None:
        sources = at[:, None] - period * np.arange(1, length // period + 1)[None] + 1
        inside = (sources >= 1) & (sources < at[:, None])
        picked = np.take_along_axis(rows, np.clip(sources, 0, length - 1), axis=1)
        induction = np.sum(np.where(inside, picked, 0), axis=1).mean()
    return np.array([previous, induction, first, reach])
