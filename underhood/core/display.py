"""How results, models and tasks print: the answer first, then a few facts; in a notebook, as a card with a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from underhood.core.registry import Registry

# class name → the picture on its card, as HTML; pages has them, and a package of yours may add more.
PICTURES: Registry[Callable[[Any], str]] = Registry("picture", "underhood.pages.cards")
CARD = "card"  # the entry that makes a card of a summary and a picture


@dataclasses.dataclass(frozen=True)
class Summary:
    """What there is to say of a thing in a few lines."""

    answer: str
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Name → value; what is None is left out."""

    def lines(self) -> list[tuple[str, str]]:
        return [(name, _text(value)) for name, value in self.facts.items() if value is not None]


class Displayed:
    """A class with a `_summary()`."""

    def _summary(self) -> Summary:
        raise NotImplementedError

    def __repr__(self) -> str:
        summary = self._summary()
        lines = summary.lines()
        width = max((len(name) for name, _ in lines), default=0)
        return "\n".join([summary.answer, *(f"  {name:<{width}}  {text}" for name, text in lines)])

    def _repr_html_(self) -> str | None:
        """The card; None, which makes a notebook show the text, where the extra `report` is not installed."""
        try:
            return PICTURES[CARD](self)
        except ImportError:
            return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return str(value)
