"""Charts and matrices of weights as SVG text: drawn once, here, so that a page shows them without running anything.

Colours are classes, which the page's style sheet fills in for light, dark and paper. Every text goes through
`Markup.format`, which escapes it.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from underhood.pages.appearance import INK, SERIES, look_of

WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 46
ABOVE = 40  # further room for the names of marks
LARGEST_PANEL = 20_000  # cells; beyond it a page is slow and a cell is smaller than a dot
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BANDS = 3  # curves that may have a shaded band each before bands hide one another
TRIED = 40  # places for a name, from one end to the other
NOTE = 6.0  # width of a letter in the name of a level
FEW = 5  # places on an axis that are marked themselves, rather than round numbers near them


@dataclasses.dataclass(frozen=True)
class Axis:
    """Values to positions between `start` and `end`, by their logarithm if `log`."""

    low: float
    high: float
    start: int
    end: int
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: int, end: int, log: bool) -> Axis:
        """An axis that holds all `values`, with a little room on both sides."""
        shown = [math.log10(value) if log else value for value in values] or [0.0]
        low, high = min(shown), max(shown)
        room = 0.04 * (high - low) if high > low else max(0.05, abs(high) * 0.05)
        return cls(low - room, high + room, start, end, log)

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return round(self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values with their labels: powers of ten, or 1-2-5 steps where the axis spans too few of them."""
        if not self.log:
            return [(value, f"{value:g}") for value in _round_steps(self.low, self.high)]
        first, last = math.ceil(self.low), math.floor(self.high)
        if last - first >= 2:
            every = -(-(last - first + 1) // 6)
            return [(10.0**power, f"10{str(power).translate(RAISED)}") for power in range(first, last + 1, every)]
        digits = (1, 2, 5) if self.high - self.low > 0.7 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
        inner = [digit * 10.0**power for power in range(first - 1, last + 1) for digit in digits]
        inside = [value for value in inner if self.low <= math.log10(value) <= self.high]
        return [(value, _number(value)) for value in inside[:: -(-len(inside) // 7) or 1]]


def chart_svg(chart: dict[str, Any], label: str) -> Markup:
    """Curves with their bands over seeds; each point carries its values, for the tip that follows the pointer."""
    log_x, log_y = bool(chart.get("log_x", True)), bool(chart.get("log_y", True))
    curves = [_points(curve, log_x, log_y) for curve in chart.get("curves") or []]
    marks = [(name, float(x)) for name, x in chart.get("marks") or [] if _drawable(x, log_x)]
    levels = [(name, float(y)) for name, y in chart.get("levels") or [] if _drawable(y, log_y)]
    xs = [point[0] for points in curves for point in points] + [x for _, x in marks]
    ys = [value for points in curves for point in points for value in point[1:]] + [y for _, y in levels]
    across = Axis.over(xs, LEFT, WIDTH - RIGHT, log_x)
    up = Axis.over(ys, HEIGHT - BOTTOM, TOP + (ABOVE if marks else 0), log_y)
    places = sorted({point[0] for points in curves for point in points})
    few = chart.get("joined", True) and len(places) <= FEW
    parts = [_grid([(x, _number(x)) for x in places] if few else across.ticks(), across, up, chart)]
    for index, (curve, points) in enumerate(zip(chart.get("curves") or [], curves, strict=True)):
        parts.append(_curve(index, curve, points, across, up, chart))
    cloud = [] if chart.get("joined", True) else [point[:2] for points in curves for point in points]
    parts.append(_lines(marks, levels, cloud, across, up))  # above the curves, where their names can be read
    head = '<svg class="chart" viewBox="0 0 {} {}" role="img" tabindex="0" aria-label="{}" data-keys="points">{}</svg>'
    return Markup(head).format(WIDTH, HEIGHT, label, Markup("").join(parts))


def panel_svg(panel: dict[str, Any]) -> Markup:
    """A matrix as cells in the paper's colours: zero grey, positive blue, negative red."""
    values = [[float(value) for value in row] for row in panel["values"]]
    columns = max((len(row) for row in values), default=0)
    name, size = str(panel.get("name", "")), f"{len(values)} × {columns}"
    if not columns or len(values) * columns > LARGEST_PANEL:
        return Markup('<p class="note">{}, {}: not drawn</p>').format(name, size)
    largest = max((abs(value) for row in values for value in row if math.isfinite(value)), default=0) or 1.0
    cell = Markup('<rect x="{}" y="{}" width="1" height="1" class="{}" style="--w:{}" data-tip="{}"/>')
    cells = [
        cell.format(
            column,
            row,
            weight_class(value),
            weight_share(value, largest),
            f"{name} [{row + 1}, {column + 1}] = {value:.4g}",
        )
        for row, entries in enumerate(values)
        for column, value in enumerate(entries)
    ]
    head = '<svg class="panel" viewBox="0 0 {} {}" style="--columns:{};--rows:{}" role="img" tabindex="0" '
    head += 'aria-label="{}" data-keys="cells" data-columns="{}">{}</svg>'
    label = f"{name}, a matrix of {size}; arrow keys read its cells"
    inside = Markup("").join(cells)
    return Markup(head).format(columns, len(values), columns, len(values), label, columns, inside)


def weight_class(value: float) -> str:
    """Positive, negative or zero."""
    return "p" if value > 0 else "n" if value < 0 else "z"


def weight_share(value: float, largest: float) -> float:
    """How far the colour goes: its share of the largest weight."""
    return round(abs(value) / largest, 3) if math.isfinite(value) else 0


def freest(
    points: Iterable[Sequence[float]], level: float, size: tuple[float, float], ends: tuple[float, float]
) -> float:
    """Where the name of a level hides the fewest of these points (x, y): its left end, the rightmost that is as good.

    `size` is the name's, `ends` the panel's; y grows upwards.
    """
    (length, height), (left, right) = size, ends
    room = height / 4  # half of a point
    beside = [x for x, y in points if level - room < y < level + height]
    last = max(right - length, left)
    places = [last + (left - last) * step / TRIED for step in range(TRIED + 1)]
    return min(places, key=lambda at: sum(at - room < x < at + length + room for x in beside))


def points_of(curve: dict[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
    """(x, y, low, high) of each point; a curve without a band has low and high at y."""
    xs, ys = curve.get("x") or [], curve.get("y") or []
    return list(zip(xs, ys, curve.get("low") or ys, curve.get("high") or ys, strict=False))


def _points(curve: dict[str, Any], log_x: bool, log_y: bool) -> list[tuple[float, float, float, float]]:
    """What the axes can show; a band that reaches below a logarithm's zero ends at y."""
    points = []
    for x, y, low, high in points_of(curve):
        if _drawable(x, log_x) and _drawable(y, log_y):
            band = (low if _drawable(low, log_y) else y, high if _drawable(high, log_y) else y)
            points.append((float(x), float(y), float(band[0]), float(band[1])))
    return points


def _drawable(value: Any, log: bool) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and (not log or value > 0)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 10**6 else f"{value:.3g}"


def _grid(places: list[tuple[float, str]], across: Axis, up: Axis, chart: dict[str, Any]) -> Markup:
    floor, parts = HEIGHT - BOTTOM, []
    for value, text in places:
        x = across(value)
        parts.append(Markup('<path class="grid" d="M{} {}V{}"/>').format(x, up.end, floor))
        # A long number at the right end would be cut off.
        anchor = "end" if x > WIDTH - RIGHT - 4 and len(text) > 3 else "middle"
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, floor + 16, anchor, text)
        )
    for value, text in up.ticks():
        y = up(value)
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 6, y + 4, text)
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(LEFT, up.end, floor, WIDTH - RIGHT))
    name = Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>')
    parts.append(name.format(middle, HEIGHT - 8, chart.get("x_label", "")))
    turned = Markup('<text class="label" transform="translate(14 {}) rotate(-90)" text-anchor="middle">{}</text>')
    parts.append(turned.format((up.end + floor) / 2, chart.get("y_label", "")))
    return Markup("").join(parts)


def _lines(marks: list[Any], levels: list[Any], cloud: list[Any], across: Axis, up: Axis) -> Markup:
    """With their names; that of a level where it hides none of the `cloud`, or at the left, where curves begin."""
    floor, parts = HEIGHT - BOTTOM, []
    for name, value in marks:
        x = across(value)
        parts.append(Markup('<path class="mark" d="M{} {}V{}"/>').format(x, up.end, floor))
        lines = textwrap.wrap(name, 11)  # above the panel, where no curve runs through them
        for above, line in enumerate(reversed(lines)):
            text = Markup('<text class="note" x="{}" y="{}" text-anchor="middle">{}</text>')
            parts.append(text.format(x, up.end - 5 - 11 * above, line))
    for name, value in levels:
        y = up(value)
        parts.append(Markup('<path class="level" d="M{} {}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        points, size = [(across(x), -up(at)) for x, at in cloud], (NOTE * len(name), 2.5 * NOTE)
        x = freest(points, -y, size, (LEFT + 4.0, WIDTH - RIGHT - 4.0)) if cloud else LEFT + 4
        parts.append(Markup('<text class="note" x="{}" y="{}">{}</text>').format(round(x, 1), y - 4, name))
    return Markup("").join(parts)


def _curve(
    index: int, curve: dict[str, Any], points: list[Any], across: Axis, up: Axis, chart: dict[str, Any]
) -> Markup:
    placed = [(across(x), up(y), up(low), up(high)) for x, y, low, high in points]
    parts = []
    joined = bool(chart.get("joined", True))
    if joined and any(low != high for _, _, low, high in placed):
        parts.append(_spread_over_seeds(placed, shaded=len(chart["curves"]) <= BANDS))
    if joined and placed:
        parts.append(Markup('<path class="line" d="M{}"/>').format("L".join(f"{x} {y}" for x, y, _, _ in placed)))
    name, x_label, y_label = curve.get("name", ""), chart.get("x_label", "x"), chart.get("y_label", "y")
    dot = Markup('<circle cx="{}" cy="{}" r="3" data-tip="{}"/>')
    for (x, y, low, high), at in zip(points, placed, strict=True):
        band = f"\n{low:.3g} to {high:.3g} over seeds" if low != high else ""
        tip = f"{name}\n{x_label}: {x:.6g}\n{y_label}: {y:.4g}{band}"
        parts.append(dot.format(at[0], at[1], tip))
    head = Markup('<g class="series {}" style="{}" data-series="{}">{}</g>')
    return head.format(*series_look(curve, index), index, Markup("").join(parts))


def _spread_over_seeds(placed: list[tuple[float, float, float, float]], *, shaded: bool) -> Markup:
    """From the least to the greatest seed: a band, or, where bands would hide one another, a line at each point."""
    if not shaded:
        lines = "".join(f"M{x} {low}V{high}" for x, _, low, high in placed)
        return Markup('<path class="whisker" d="{}"/>').format(lines)
    upper = [f"{x} {high}" for x, _, _, high in placed]
    lower = [f"{x} {low}" for x, _, low, _ in reversed(placed)]
    return Markup('<path class="band" d="M{}Z"/>').format("L".join(upper + lower))


def series_look(curve: dict[str, Any], index: int) -> tuple[str, str]:
    """Class and style of a curve: its architecture's colour, or, in a file that names none, one by its place."""
    model, dash = curve.get("model"), curve.get("dash")
    known = model if isinstance(model, str) else None
    colour, dash = look_of(known, dash if isinstance(dash, int) else None, index)
    dashed = ("", " dashed", " dotted")[dash]
    if colour in SERIES:
        return f"s{SERIES.index(colour)}{dashed}", ""
    return f"own{dashed}", f"--own:{'var(--ink)' if colour == INK else colour}"


def _round_steps(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda digit: abs(digit * power - rough))
    first = math.ceil(low / step)
    return [round(count * step, 12) for count in range(first, math.floor(high / step) + 1)]
