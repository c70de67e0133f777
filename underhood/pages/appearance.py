"""The architectures that the paper compares, and how each looks: one colour in every figure and on every page.

Colour and label are the registry's (`underhood.core.model.Architecture`). Dashes tell layers apart, also in greyscale.
"""

from __future__ import annotations

from underhood.attention.linear import LinearAttention
from underhood.core.model import ARCHITECTURES

# Sections 3.3 and 4.3. What else the registry holds is compared elsewhere.
COMPARED = ("gated-rnn", "gated-rnn-dense", "lru", "lru-in-out", "lru-in-skip", "lstm", "gru")

INK = "#222222"  # text, and attention
SERIES = ("#2166ac", "#d6604d", "#1b7837", "#762a83", "#bf812d", "#35978f")  # curves without an architecture
DASHES = 3


def stacked() -> dict[str, str]:
    """Name → label of those compared that come in one layer and more: the rows of Table 3."""
    return {name: ARCHITECTURES[name].label for name in COMPARED if ARCHITECTURES[name].most_layers != 1}


def colour_of(model: str | None) -> str | None:
    """The colour that the model has everywhere; None for what is not an architecture of this installation."""
    if model == LinearAttention.kind:
        return INK
    return ARCHITECTURES[model].colour if model is not None and model in ARCHITECTURES else None


def label_of(model: str | None) -> str | None:
    """Its name in figures; None as for `colour_of`."""
    return ARCHITECTURES[model].label if model is not None and model in ARCHITECTURES else None


def marker_of(model: str | None) -> int:
    """Which shape its points have, to read figures without colour: the paper's architectures first, then the others."""
    order = [*COMPARED, *(name for name in ARCHITECTURES if name not in COMPARED)]
    return order.index(model) if model in order else 0


def look_of(model: str | None, dash: int | None, place: int) -> tuple[str, int]:
    """Colour and dash of a curve; one without an architecture takes them from its `place` in the chart."""
    colour = colour_of(model)
    if colour is None:
        return SERIES[place % len(SERIES)], place // len(SERIES) % DASHES if dash is None else dash % DASHES
    return colour, (dash or 0) % DASHES
