"""An attention map as a picture: row t has what each step s gives to output t, blue positive, red negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from underhood.core.outputs import SOFTWARE
from underhood.explain.maps import AttentionMap
from underhood.pages.appearance import INK
from underhood.pages.drawing import FAINT, NEGATIVE, POSITIVE, new_figure, rendered, text_of

SIGNED = LinearSegmentedColormap.from_list("signed", [NEGATIVE, "#f2b3ac", "#ffffff", "#a9c9e8", POSITIVE])
SIZES = LinearSegmentedColormap.from_list("sizes", ["#ffffff", "#a9c9e8", POSITIVE, "#0b2f57"])
LATER = "#f4f4f2"  # steps that are yet to come
PANELS, COLUMNS = 12, 4  # most maps of a picture, and how many side by side
LABELLED, LONGEST = 64, 12  # steps that have a name each, and letters of a name
SIDE, GAP, SPACE = 5.2, 1.1, 0.9  # inches: of a map, between maps, around them


def draw_map(found: AttentionMap, tokens: Sequence[str] | None, title: str) -> bytes:
    """The picture as PNG: every map beside its colours, at most twelve of them."""
    shown = len(found.names[:PANELS])
    columns = min(shown, COLUMNS)
    rows, side = -(-shown // columns), SIDE if shown == 1 else SIDE / 1.6
    figure = new_figure(columns * (side + GAP) + SPACE, rows * (side + GAP) + SPACE)
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"wspace": 0.4, "hspace": 0.35})
    for axes in grid.flat[shown:]:
        axes.set_axis_off()
    for axes, weights, name in zip(grid.flat, found.weights, found.names, strict=False):
        _draw(axes, weights, found.reduce != "norm", tokens if shown == 1 else None)
        axes.set_title("" if shown == 1 else name, fontsize=9, loc="left", color=INK)
    gap = text_of(float(found.completeness))
    more = f", {shown} of {len(found.names)} maps" if shown < len(found.names) else ""
    grid[0, 0].annotate(
        f"{title}: {found.kind} map, unexplained {gap}{more}",
        *((0, 1), (0, 10 if shown == 1 else 26)),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=10.5,
        color=INK,
        parse_math=False,
    )
    return rendered(figure, "png", {"Software": SOFTWARE})


def _draw(axes: Axes, weights: np.ndarray, signed: bool, tokens: Sequence[str] | None) -> None:
    length = len(weights)
    limit = float(np.max(np.abs(weights))) or 1.0
    later = np.triu(np.ones((length, length), bool), 1)
    colours = (SIGNED if signed else SIZES).with_extremes(bad=LATER)
    image = axes.imshow(
        np.ma.array(weights, mask=later),
        cmap=colours,
        vmin=-limit if signed else 0,
        vmax=limit,
        interpolation="nearest" if length <= 1000 else None,
        extent=(-0.5, length - 0.5, length - 0.5, -0.5),
    )
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7.5, length=2, color=FAINT)
    axes.set_xlabel("comes from step s", fontsize=9, color=INK)
    axes.set_ylabel("output of step t", fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color=FAINT)
    if tokens is not None and length <= LABELLED:
        steps, size = range(length), min(8.0, 260 / length)
        names = [label(one) for one in tokens]
        axes.set_xticks(steps, names, rotation=90, fontsize=size, parse_math=False)
        axes.set_yticks(steps, names, fontsize=size, parse_math=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def label(token: str) -> str:
    """A token short enough for an axis, with a dot for what has no shape."""
    short = token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"
    return "".join(letter if letter.isprintable() else "·" for letter in short)
