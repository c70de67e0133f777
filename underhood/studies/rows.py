"""Rows of an artifact: a number beside the paper's, and, where something is asked of it, the target it has to meet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from underhood.pages.drawing import text_of


@dataclasses.dataclass(frozen=True)
class Target:
    """A condition on one number, with its wording. What is missing or NaN never meets it."""

    text: str
    holds: Callable[[Any], bool]

    def met_by(self, value: Any) -> bool:
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return not missing and bool(self.holds(value))


def at_most(limit: float | int) -> Target:
    return Target(f"≤ {text_of(limit)}", lambda value: value <= limit)


def at_least(limit: float | int) -> Target:
    return Target(f"≥ {text_of(limit)}", lambda value: value >= limit)


def above(limit: float | int) -> Target:
    return Target(f"> {text_of(limit)}", lambda value: value > limit)


def below(limit: float | int) -> Target:
    return Target(f"< {text_of(limit)}", lambda value: value < limit)


def near(wanted: float | int, within: float | int) -> Target:
    return Target(f"{text_of(wanted)} ± {text_of(within)}", lambda value: abs(value - wanted) <= within)


def equals(wanted: Any) -> Target:
    return Target(f"= {text_of(wanted)}", lambda value: value == wanted)


@dataclasses.dataclass(frozen=True)
class Row:
    """One number: the paper's (None where it has none), ours, and its target (None where nothing is asked of it)."""

    name: str
    paper: Any
    here: Any
    target: Target | None = None
    by_seed: tuple[Any, ...] = ()
    """The same number from each seed alone, where `here` is of several."""
    judged: Any = None
    """The number that the target is asked of, where `here` is a text about it."""

    @property
    def met(self) -> bool | None:
        """None without a target: information has no tick."""
        if self.target is None:
            return None
        return self.target.met_by(self.here if self.judged is None else self.judged)

    def as_data(self) -> dict[str, Any]:
        """The entry of the artifact's JSON."""
        data = {"name": self.name, "paper": self.paper, "here": self.here}
        data |= {"target": None if self.target is None else self.target.text, "met": self.met}
        return data | ({"by_seed": list(self.by_seed)} if self.by_seed else {})
