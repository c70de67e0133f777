"""Charts as a figure: colours by architecture, dashes by layers, and every name beside what it names."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from scipy.optimize import isotonic_regression

from underhood.pages.appearance import INK, label_of, look_of, marker_of
from underhood.pages.charts import Chart, Curve
from underhood.pages.drawing import FAINT, new_figure, style_curves
from underhood.pages.svg import BANDS, FEW, freest

LINES = ("-", (0, (4, 2)), (0, (1, 1.4)))
SHAPES = "osD^vPX"
PANEL, LEFT, BELOW = (3.7, 2.8), 0.7, 0.6  # inches
TITLE, MARKED = 0.4, 0.75  # above a panel, and where marks are named there
NAMES, LEGEND, BARE = 1.15, 1.75, 0.2  # to the right of a panel: the names of its curves, a row's legend, nothing
SPAN = 2.1  # decades: an axis that has fewer is labelled at 1, 2 and 5 as well
SMALL = 7.5  # points, of names
EDGE = 0.012  # of a panel's width, between its edge and a name
DARKER = 0.75  # of a name's colour: letters are thinner than lines
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}


def draw_charts(charts: Sequence[Chart], *, legend: bool = False, columns: int = 2) -> Figure:
    """The charts in rows; names are at the end of each curve, or, with `legend`, at the end of each row."""
    columns = min(columns, len(charts))
    lines = [charts[at : at + columns] for at in range(0, len(charts), columns)]
    (wide, tall), right = PANEL, BARE if legend else NAMES
    aboves = [MARKED if any(chart.marks for chart in line) else TITLE for line in lines]
    bottoms = np.cumsum([above + tall + BELOW for above in aboves])  # from the top
    width, height = columns * (LEFT + wide + right) + (LEGEND if legend else 0), float(bottoms[-1])
    figure = new_figure(width, height)
    for index, chart in enumerate(charts):
        row, column = divmod(index, columns)
        left, bottom = column * (LEFT + wide + right) + LEFT, height - bottoms[row] + BELOW
        last = index == len(charts) - 1
        spanned = wide + (columns - 1 - column) * (LEFT + wide + right) if last else wide  # no empty corner
        axes = figure.add_axes((left / width, bottom / height, spanned / width, tall / height))
        draw_chart(axes, chart, raised=aboves[row] == MARKED)
        if not legend:
            name_curves(axes, chart)
        elif last or column == columns - 1:
            beside = 1 + 0.2 / spanned
            axes.legend(handles=_handles(chart), loc="upper left", bbox_to_anchor=(beside, 1.02), **_LEGEND_LOOK)
    return figure


def draw_chart(axes: Axes, chart: Chart, *, raised: bool) -> None:
    """Axes, curves, marks and levels; the title `raised` above the names of marks, its own or a neighbour's."""
    style_curves(axes, chart.x_label, chart.y_label, chart.name)
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    for place, curve in enumerate(chart.curves):
        _draw_curve(axes, curve, place, chart)
    if chart.log_x:
        widths = sorted({x for curve in chart.curves for x in curve.x})
        if len(widths) == 1:  # an axis with one place on it has no length of its own
            axes.set_xlim(widths[0] / 2, widths[0] * 2)
        _label_logarithm(axes.xaxis, widths if chart.joined and len(widths) <= FEW else None)
    if chart.log_y:
        _label_logarithm(axes.yaxis, None)
    for name, x in chart.marks:
        axes.axvline(x, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
        place = {"xy": (x, 1.01), "xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
        axes.annotate(textwrap.fill(name, 10), **place, fontsize=6.5, color=INK, linespacing=1.0)
    if raised:
        axes.set_title(chart.name, fontsize=10, loc="left", color=INK, pad=34)
    for name, y in chart.levels:
        axes.axhline(y, color=FAINT, linewidth=0.9, linestyle=(0, (6, 3)), zorder=1)
        at = EDGE if chart.joined else _free(axes, chart, name, y)  # at the edge curves have not met yet
        place = {"xy": (at, y), "xycoords": ("axes fraction", "data"), "ha": "left", "va": "bottom"}
        axes.annotate(name, **place, fontsize=SMALL, color=INK, bbox=HALO)


def _free(axes: Axes, chart: Chart, name: str, y: float) -> float:
    """The left end of a level's name, as a share of the panel's width."""
    axes.autoscale_view()  # brings the transform up to date
    box, point = axes.get_window_extent(), axes.figure.dpi / 72
    places = [place for curve in chart.curves for place in zip(curve.x, curve.y, strict=True)]
    *points, (_, level) = axes.transData.transform([*places, (chart.curves[0].x[0], y)]).tolist()
    size, edge = (0.65 * SMALL * len(name) * point, 1.6 * SMALL * point), EDGE * box.width
    return (freest(points, level, size, (box.x0 + edge, box.x1 - edge)) - box.x0) / box.width


def _draw_curve(axes: Axes, curve: Curve, place: int, chart: Chart) -> None:
    colour, dash = look_of(curve.model, curve.dash, place)
    look = {"color": colour, "marker": _shape(curve), "markeredgewidth": 1.1}
    look |= {"markersize": 4.2 if chart.joined else 5.2, "markerfacecolor": colour if dash == 0 else "white"}
    axes.plot(curve.x, curve.y, linestyle=LINES[dash] if chart.joined else "none", linewidth=1.4, **look)
    if not chart.joined:
        return
    if len(chart.curves) <= BANDS:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.vlines(curve.x, curve.low, curve.high, color=colour, alpha=0.45, linewidth=1.1)


def _shape(curve: Curve) -> str:
    return SHAPES[marker_of(curve.model) % len(SHAPES)]


def _label_logarithm(axis: Axis, places: list[float] | None) -> None:
    """Ticks at `places`, at 1, 2 and 5 of a short axis, or at powers of ten."""
    low, high = axis.get_view_interval()
    if places is None and np.log10(high / low) > SPAN:
        axis.set_minor_formatter(NullFormatter())
        return
    digits = (1.0, 2.0, 5.0) if np.log10(high / low) > 0.8 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=digits) if places is None else FixedLocator(places))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def name_curves(axes: Axes, chart: Chart) -> None:
    """Each name beside the last point of its curve, moved up or down until it can be read."""
    if not chart.curves:
        return
    ends = np.array([(curve.x[-1], curve.y[-1]) for curve in chart.curves])
    points = axes.transData.transform(ends) * 72 / axes.figure.dpi
    box = axes.get_window_extent()
    middle = (box.x0 + box.x1) / 2 * 72 / axes.figure.dpi
    moved = spread(points[:, 1].tolist(), 1.3 * SMALL)
    for place, (curve, end, at, up) in enumerate(zip(chart.curves, ends, points, moved, strict=True)):
        inwards = not chart.joined and at[0] > middle
        axes.annotate(
            curve.name,
            tuple(end),
            xytext=(-8 if inwards else 8, up - at[1]),
            textcoords="offset points",
            ha="right" if inwards else "left",
            va="center",
            fontsize=SMALL,
            color=DARKER * np.array(to_rgb(look_of(curve.model, curve.dash, place)[0])),
            bbox=HALO,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3}
            if abs(up - at[1]) > 2
            else None,
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places at least `gap` apart and in the same order, as near to the wanted ones as that allows (least squares)."""
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    placed = np.empty(len(wanted))
    placed[order] = isotonic_regression(np.asarray(wanted)[order] - steps).x + steps
    return placed.tolist()


_LEGEND_LOOK = {"fontsize": 8.5, "frameon": False, "handlelength": 2.6, "borderaxespad": 0.0, "labelspacing": 0.55}


def _handles(chart: Chart) -> list[Line2D]:
    """An entry for each colour, and below them one for each number of layers."""
    entries: dict[str, Line2D] = {}
    looks = [look_of(curve.model, curve.dash, place) for place, curve in enumerate(chart.curves)]
    style = "-" if chart.joined else "none"
    for curve, (colour, _) in zip(chart.curves, looks, strict=True):
        shape = _shape(curve)
        line = Line2D([], [], color=colour, marker=shape, markersize=4.5, linewidth=1.5, linestyle=style)
        line.set_label(label_of(curve.model) or curve.name)
        entries.setdefault(colour, line)
    dashes = sorted({dash for _, dash in looks})
    if len(dashes) > 1:
        entries["gap"] = Line2D([], [], linestyle="none", label=" ")
    for dash in dashes if len(dashes) > 1 else []:
        fill = FAINT if dash == 0 else "white"
        line = Line2D([], [], color=FAINT, linestyle=LINES[dash] if chart.joined else "none", linewidth=1.5, marker="o")
        line.set(markersize=4.5, markerfacecolor=fill, label=f"{dash + 1} layer{'s' * (dash > 0)}")
        entries[f"dash {dash}"] = line
    return list(entries.values())
