"""Cards of a notebook: the answer, the facts beside a picture: a map as a map, weights as cells, a loss as a curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from markupsafe import Markup

from underhood.core.display import CARD, PICTURES, Displayed
from underhood.core.errors import UnderhoodError
from underhood.core.model import Part
from underhood.pages.page import render
from underhood.pages.svg import chart_svg, panel_svg

MOST_CELLS = 3000  # weights or entries of a map; more make a notebook slow to open
MOST_STEPS = 48  # of a map; a longer one is shown by the means of its blocks


def card(thing: Displayed) -> str:
    """HTML of its own, with its style inside; nothing in it runs."""
    summary = thing._summary()
    for cls in type(thing).__mro__:
        if (make := PICTURES.get(cls.__name__)) is not None:
            picture = Markup(make(thing))
            break
    else:
        picture = Markup("")
    return render("card.html", (), answer=summary.answer, facts=summary.lines(), picture=picture)


PICTURES.register(CARD)(card)


def picture_of(name: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Decorator: the picture for a class of this name."""
    return PICTURES.register(name)


@picture_of("Part")
def weights(model: Part) -> str:
    """Every weight as a cell, a line for each part."""
    if sum(np.size(leaf) for leaf in _arrays(model)) > MOST_CELLS:
        return ""
    from underhood.pages.portrait import lines_of

    try:
        lines = lines_of(model)
    except UnderhoodError:  # a part that has no picture
        return ""
    figure, shown = Markup("<figure><figcaption>{}</figcaption>{}</figure>"), Markup("")
    for line in lines:
        panels = [
            figure.format(panel.name, panel_svg({"name": panel.name, "values": panel.values})) for panel in line.panels
        ]
        shown += Markup('<div class="line">{}</div>').format(Markup("").join(panels))
    return shown


def _arrays(model: Any) -> list[Any]:
    import jax

    return [leaf for leaf in jax.tree.leaves(model) if hasattr(leaf, "shape")]


@picture_of("Compiled")
def compiled(thing: Any) -> str:
    return weights(thing.model) if isinstance(thing.model, Part) else ""


@picture_of("Found")
def found(thing: Any) -> str:
    return "" if thing.attention is None else weights(thing.attention)


@picture_of("AttentionMap")
def attention_map(thing: Any) -> str:
    """The first map; of long sequences, means over blocks of steps."""
    first = np.asarray(thing.weights[0], np.float64)
    for axis in (0, 1):
        block = -(-first.shape[axis] // MOST_STEPS)
        places = np.arange(0, first.shape[axis], block)
        first = np.add.reduceat(first, places, axis=axis) / block
    return panel_svg({"name": "output by step", "values": np.where(np.isfinite(first), first, 0.0).tolist()})


@picture_of("Run")
def run(thing: Any) -> str:
    """The loss as it fell."""
    points = [(line["step"], line["loss"]) for line in thing.history if line.get("loss") and line.get("step")]
    if len(points) < 2:
        return ""
    steps, losses = (list(map(float, values)) for values in zip(*points, strict=True))
    curve = {"name": "loss", "x": steps, "y": losses}
    return chart_svg({"name": "loss", "x_label": "step", "y_label": "loss", "curves": [curve]}, "loss against steps")
