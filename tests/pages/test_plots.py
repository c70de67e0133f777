"""Figures and pages give an architecture one colour, and layers a dash; names can be read."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from underhood.core.model import ARCHITECTURES
from underhood.pages.appearance import COMPARED, INK, SERIES, colour_of, look_of, stacked
from underhood.pages.charts import Chart, Curve
from underhood.pages.plots import LINES, SHAPES, draw_charts, spread
from underhood.pages.svg import LEFT, RIGHT, WIDTH, chart_svg, freest, series_look


def line(model, layers, y=1.0):
    label = f"{ARCHITECTURES[model].label}, {layers}"
    return Curve(label, [8.0, 16.0], [y, y / 2], [y, y / 2], [y, y / 2], model, layers - 1)


@pytest.fixture
def chart():
    curves = [line(model, layers, 1.0 + place) for place, model in enumerate(COMPARED) for layers in (1, 2)]
    return Chart("A", "hidden neurons", "loss", tuple(curves))


def test_an_architecture_has_one_colour_in_figures_and_pages(chart):
    for legend in (False, True):
        (axes,) = draw_charts([chart], legend=legend).axes
        for curve, drawn in zip(chart.curves, axes.lines, strict=True):
            assert to_hex(drawn.get_color()) == ARCHITECTURES[curve.model].colour == colour_of(curve.model)
            assert (drawn.get_linestyle() == "-") == (curve.dash == 0)
            assert (to_hex(drawn.get_markerfacecolor()) == "#ffffff") == (curve.dash == 1)
    page = chart_svg(dataclasses.asdict(chart), "label")
    assert re.findall(r"--own:(#\w{6})", page) == [ARCHITECTURES[curve.model].colour for curve in chart.curves]
    assert page.count("own dashed") == len(COMPARED)


def test_many_curves_have_lines_over_seeds_and_few_have_bands(chart):
    data = dataclasses.asdict(chart)
    for curve in data["curves"]:
        curve["high"] = [2 * y for y in curve["y"]]
    few = chart_svg({**data, "curves": data["curves"][:3]}, "label")
    assert (few.count("whisker"), few.count("band")) == (0, 3)
    many = chart_svg(data, "label")
    assert (many.count("whisker"), many.count("band")) == (len(chart.curves), 0)


def test_architectures_that_are_compared_can_be_told_apart():
    assert set(COMPARED) <= set(ARCHITECTURES)
    assert set(stacked()) == {"lru", "lru-in-out", "lru-in-skip", "lstm", "gru"}
    assert len(SHAPES) >= len(COMPARED)  # in greyscale, by their markers
    assert len(set(LINES)) == len(LINES)
    colours = {name: np.array(to_rgb(ARCHITECTURES[name].colour)) for name in COMPARED}
    colours["linear-attention"] = np.array(to_rgb(INK))
    for (one, first), (two, second) in itertools.combinations(colours.items(), 2):
        assert np.linalg.norm(first - second) > 0.25, (one, two)


def test_curves_without_an_architecture_have_a_look_by_their_place():
    assert [look_of(None, None, place) for place in (0, 7)] == [(SERIES[0], 0), (SERIES[1], 1)]
    assert look_of("not-installed", 1, 2) == (SERIES[2], 1)
    assert series_look({"name": "old file"}, 0) == ("s0", "")
    assert series_look({"model": ["hostile"], "dash": "1"}, 1) == ("s1", "")
    assert series_look({"model": "lstm", "dash": 4}, 1) == ("own dashed", f"--own:{ARCHITECTURES['lstm'].colour}")
    assert series_look({"model": "linear-attention"}, 1) == ("own", "--own:var(--ink)")


def test_names_do_not_overlap_and_keep_their_order():
    wanted = [5.0, 5.1, 0.0, 5.2, 40.0]
    placed = spread(wanted, 10.0)
    assert np.argsort(placed).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(placed)).min() >= 10 - 1e-9
    assert placed[4] == 40.0  # what is far enough stays
    assert np.diff(sorted(wanted)).min() < 10  # negative control: they would have overlapped


def test_the_last_panel_leaves_no_empty_corner(chart):
    figure = draw_charts([chart, chart, chart], legend=True)
    widths = [axes.get_position().width for axes in figure.axes]
    assert widths[2] > 2 * widths[0]
    legends = [axes.get_legend() is not None for axes in figure.axes]
    assert legends == [False, True, True]
    texts = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert texts == [*(ARCHITECTURES[name].label for name in COMPARED), " ", "1 layer", "2 layers"]


def test_a_chart_of_one_width_shows_its_points():
    """As a sweep has it that has just begun."""
    at = [Curve(name, [8.0], [1.0 + y], [1.0], [9.0], name) for y, name in enumerate(COMPARED)]
    figure = draw_charts([Chart("A", "hidden neurons", "loss", tuple(at))])
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low < 8 < high
    assert [8.0, 1.0] in [drawn.get_xydata()[0].tolist() for drawn in axes.lines]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["8"]


def test_a_name_goes_where_it_hides_the_fewest_points():
    size, ends = (20.0, 4.0), (0.0, 100.0)
    assert freest([], 0.0, size, ends) == 80.0
    assert freest([(90.0, 1.0)], 0.0, size, ends) <= 70.0
    assert freest([(90.0, 9.0), (90.0, -3.0)], 0.0, size, ends) == 80.0  # above the name, and below the level
    crowded = [(float(x), 1.0) for x in range(0, 101, 5) if x != 40]
    assert 20 < freest(crowded, 0.0, size, ends) < 40  # hides one less there
    assert freest([], 0.0, (200.0, 4.0), ends) == 0.0  # longer than the panel


def test_the_name_of_a_level_covers_no_points_where_there_is_room():
    """Points on the level at the right, where the name goes otherwise, and at the left. In figures and on pages."""
    for xs, free in (([0.8, 0.9, 1.0], (0.0, 0.7)), ([0.0, 0.1, 0.9, 1.0], (0.15, 0.79)), ([0.0, 0.2], (0.6, 1.0))):
        points = Curve("a", xs, [1.0] * len(xs), [1.0] * len(xs), [1.0] * len(xs), None, 0)
        corners = Curve("b", [0.0, 1.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0], None, 0)
        chart = Chart(
            "t", "x", "y", (points, corners), levels=(("level", 1.0),), joined=False, log_x=False, log_y=False
        )
        (axes,) = draw_charts([chart]).axes
        (name,) = [text for text in axes.texts if text.get_text() == "level"]
        assert free[0] <= name.xy[0] <= free[1], xs
        (at,) = re.findall(r'class="note" x="([0-9.]+)"', chart_svg(dataclasses.asdict(chart), "t"))
        assert free[0] <= (float(at) - LEFT) / (WIDTH - RIGHT - LEFT) <= free[1], xs
