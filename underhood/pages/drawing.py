"""How figures look: the paper's colours for weights, one style for tables and curves."""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

from underhood.core.outputs import SOFTWARE
from underhood.pages.appearance import INK
from underhood.pages.numbers import text_of

if TYPE_CHECKING:
    from underhood.pages.charts import Panel

POSITIVE, NEGATIVE, ZERO = "#2166ac", "#b2182b", "#dcdcdc"  # blue, red and grey, as in Figures 1 and 2
FAINT = "#8a8a8a"

# Exactly zero is grey, and even the smallest weight is not.
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", [(0, NEGATIVE), (0.5, "#f7d9d5"), (0.5, "#d6e4f2"), (1, POSITIVE)]
).with_extremes(bad=ZERO)


# Text stays text in PDF and SVG, and the same figure is the same file. Set while saving only: a notebook's own settings
# are its user's.
FONT = "DejaVu Sans"  # which comes with matplotlib, and has the symbols
SAVING = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "underhood", "font.family": FONT}


def new_figure(width: float, height: float) -> Figure:
    """A figure that needs no display."""
    return Figure(figsize=(width, height))


def draw_weights(axes: Axes, matrix: np.ndarray, title: str, limit: float | None = None) -> None:
    """A matrix as coloured cells: zero grey, positive blue, negative red."""
    matrix = np.atleast_2d(np.asarray(matrix, float))
    limit = limit or float(np.max(np.abs(matrix), initial=0)) or 1.0
    axes.imshow(np.ma.masked_equal(matrix, 0), cmap=WEIGHTS, vmin=-limit, vmax=limit, interpolation="nearest")
    rows, columns = matrix.shape
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(typeset(title), fontsize=9, color=INK, pad=5)


@dataclasses.dataclass(frozen=True)
class Line:
    """Matrices side by side; captions (first panel, last panel, text) span panels below them."""

    title: str
    panels: Sequence[Panel]
    captions: Sequence[tuple[int, int, str]] = ()


CELL, GAP, BELOW = 0.17, 0.62, 0.62  # inches
TITLED, UNTITLED = 0.62, 0.4  # above a line of panels


def draw_pipeline(lines: Sequence[Line], title: str) -> Figure:
    """Lines of matrices in the order of the data, all with cells of one size."""
    tall = [max(len(panel.values) for panel in line.panels) * CELL for line in lines]
    aboves = [TITLED if line.title else UNTITLED for line in lines]
    belows = [BELOW if line.captions else 0.25 for line in lines]
    heights = [sum(parts) for parts in zip(tall, aboves, belows, strict=True)]
    widths = [sum(len(panel.values[0]) * CELL + GAP for panel in line.panels) + GAP for line in lines]
    width, height = max(widths), sum(heights) + 0.35
    figure, top = new_figure(width, height), height - 0.35
    figure.text(GAP / width, 1 - 0.1 / height, title, ha="left", va="top", fontsize=10.5, color=INK)
    for line, most, above, taken in zip(lines, tall, aboves, heights, strict=True):
        if line.title:
            figure.text(
                0.12 / width, (top - 0.02) / height, line.title, va="top", fontsize=10, color=INK, weight="bold"
            )
        left, edges = GAP, []
        for panel in line.panels:
            rows, columns = np.shape(panel.values)
            bottom = top - above - (most + rows * CELL) / 2
            box = (left / width, bottom / height, columns * CELL / width, rows * CELL / height)
            draw_weights(figure.add_axes(box), np.array(panel.values), panel.name)
            edges.append((left, left + columns * CELL))
            left += columns * CELL + GAP
        for first, last, text in line.captions:
            centre = (edges[first][0] + edges[last][1]) / 2 / width
            below = (top - above - most - 0.1) / height
            figure.text(centre, below, text, ha="center", va="top", fontsize=8.5, color="#555555")
        top -= taken
    return figure


def draw_table(axes: Axes, header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float]) -> None:
    """A ruled table as in the paper: three lines, no boxes."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) + 1.2, -0.4)
    edges = np.concatenate([[0], np.cumsum(widths) / np.sum(widths)])
    for index, row in enumerate([header, *rows]):
        for column, text in enumerate(row):
            left = column == 0
            axes.text(
                edges[column] + 0.01 if left else (edges[column] + edges[column + 1]) / 2,
                index + 0.3 if index else 0.1,
                typeset(text),
                ha="left" if left else "center",
                va="center",
                fontsize=9,
                color=INK,
                weight="bold" if index == 0 else "normal",
            )
    for height, width in ((-0.4, 1.2), (0.65, 0.7), (len(rows) + 0.9, 1.2)):
        axes.axhline(height, color=INK, linewidth=width)


def style_curves(axes: Axes, xlabel: str, ylabel: str, title: str) -> None:
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def typeset(text: str) -> str:
    """W_V and W_m^in with their indices below and above, as matplotlib sets them."""
    return re.sub(r"W_(\w)(?:\^(\w+))?", lambda found: f"$W_{found[1]}{f'^{{{found[2]}}}' if found[2] else ''}$", text)


def seeds_of(row: dict[str, Any]) -> str:
    """What stands behind a row of a record: how many seeds, and the least and the largest number that one gives."""
    found = row.get("by_seed")
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(one, (int, float)) for one in found):
        return ""
    if len(found) == 1:
        return "1 seed"
    least, most = text_of(min(found)), text_of(max(found))
    return f"{len(found)} seeds: {least if least == most else f'{least} to {most}'}"


def rendered(figure: Figure, suffix: str, metadata: dict[str, Any] | None = None) -> bytes:
    """The figure as a file's bytes, without a date, so that the same figure is the same file."""
    buffer = io.BytesIO()
    known = {
        "pdf": {"Creator": SOFTWARE, "CreationDate": None},
        "png": {"Software": SOFTWARE},
        "svg": {"Title": SOFTWARE, "Date": None},
    }
    with matplotlib.rc_context(dict[Any, Any](SAVING)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a letter that the font lacks is drawn as a box
        for text in figure.findobj(Text):
            text.set_fontfamily(FONT)
        figure.savefig(buffer, format=suffix, dpi=160, bbox_inches="tight", metadata=metadata or known[suffix])
    return buffer.getvalue()
