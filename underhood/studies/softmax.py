"""How large must the state of a recurrent network be to hold softmax attention to a given error?

Queries and keys on a sphere, so that scores fill ±B, values within ±1. A polynomial of degree n takes C(d_k + n, n)
features and the state d_v + 1 numbers for each; its bound holds for every sequence of any length. Beside it Taylor's
polynomial, with the same features; positive random features, as many, measured; and a floor: among N keys of which each
outweighs all others together, the sign of every value can be read back, so that the state must hold N d_v bits.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underhood.attention.features import RandomFeatures, feature_count
from underhood.attention.polynomials import Polynomial, exponential
from underhood.compiler.kernels import average_error
from underhood.pages.appearance import INK
from underhood.pages.drawing import FAINT, new_figure
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.rows import Row, at_most

KEYS = (2, 4, 8, 16)
SCORES = (1.0, 2.0, 4.0, 8.0)
COLOURS = ("#fdae61", "#d7611e", "#8c2d04", "#3f0f03")  # of SCORES
WANTED = 0.01
STEPS, SEEDS = 200, 5
MOST_DEGREE = 24
MOST_RANDOM = 5000  # random features that are drawn
LEAST_SHOWN, MOST_SHOWN = 1e-9, 1.0
CANDIDATES = 3000  # keys among which those that can be told apart are looked for


@dataclasses.dataclass(frozen=True)
class Cell:
    """One size of keys and one range of scores."""

    d_key: int
    scores: float
    ours: tuple[tuple[int, float], ...]
    """(numbers of the state, bound) for degrees from 1 on."""
    taylor: tuple[tuple[int, float], ...]
    random: tuple[tuple[int, float], ...]
    """(numbers, median error measured)."""
    degree: int
    """The lowest with a bound of `WANTED`."""
    measured: float
    """Its error on sequences."""
    items: int
    """Keys found that can be told apart."""

    @property
    def numbers(self) -> int:
        """Of the state that holds softmax to `WANTED`."""
        return state_numbers(self.d_key, self.degree)

    @property
    def bound(self) -> float:
        return average_error(exponential(self.degree, self.scores).error)

    @property
    def taylor_numbers(self) -> int | None:
        """What Taylor's polynomial takes for the same, if any degree does."""
        return next((numbers for numbers, bound in self.taylor if bound <= WANTED), None)

    @property
    def at_random(self) -> float | None:
        """The error of random features in a state of that size."""
        return dict(self.random).get(self.numbers)


def state_numbers(d_key: int, degree: int) -> int:
    """Features times values and the sum below the line, d_v = d_k."""
    return feature_count(d_key, degree) * (d_key + 1)


def study_cell(d_key: int, scores: float) -> Cell:
    """Bounds of all degrees, and what is measured."""
    degrees = range(1, MOST_DEGREE + 1)
    ours = [(state_numbers(d_key, n), average_error(exponential(n, scores).error)) for n in degrees]
    taylor = [(state_numbers(d_key, n), average_error(exponential(n, scores, "taylor").error)) for n in degrees]
    degree = next(n for n, (_, bound) in zip(degrees, ours, strict=True) if bound <= WANTED)
    small = [n for n in degrees if feature_count(d_key, n) <= MOST_RANDOM and n <= degree]
    random = [(state_numbers(d_key, n), random_error(d_key, scores, feature_count(d_key, n))) for n in small]
    measured = max(polynomial_error(exponential(degree, scores), d_key, seed) for seed in range(SEEDS))
    items = keys_told_apart(d_key, scores)
    return Cell(d_key, scores, tuple(ours), tuple(taylor), tuple(random), degree, measured, items)


def _sequence(d_key: int, scores: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries and keys of length √B, the keys of a few clusters, and values ±1."""
    random = np.random.default_rng(seed)
    queries, keys = (_on_sphere(random.normal(size=(STEPS, d_key))) * np.sqrt(scores) for _ in range(2))
    keys[1::3] = queries[1::3]  # scores reach B
    keys[2::3] = -queries[2::3]
    return queries, keys, random.choice([-1.0, 1.0], (STEPS, d_key))


def _on_sphere(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _averages(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    weights = np.tril(weights)
    return (weights / weights.sum(axis=1, keepdims=True)) @ values


def polynomial_error(polynomial: Polynomial, d_key: int, seed: int) -> float:
    """With p(q·k) itself: its features give the same sum."""
    queries, keys, values = _sequence(d_key, polynomial.bound, seed)
    scores = queries @ keys.T
    return float(np.max(np.abs(_averages(polynomial(scores), values) - _averages(np.exp(scores), values))))


def random_error(d_key: int, scores: float, count: int) -> float:
    """Median over draws of the features and the sequence."""
    errors = []
    for seed in range(SEEDS):
        queries, keys, values = _sequence(d_key, scores, seed)
        directions = np.asarray(RandomFeatures.random(d_key, count, seed).directions)
        of_queries, of_keys = (np.exp(rows @ directions.T - 0.5 * scores) for rows in (queries, keys))
        exact = _averages(np.exp(queries @ keys.T), values)
        errors.append(np.max(np.abs(_averages(of_queries @ of_keys.T, values) - exact)))
    return float(np.median(errors))


def keys_told_apart(d_key: int, scores: float, seed: int = 0) -> int:
    """Keys on the sphere of which each, asked for, has more than half of the weight: taken greedily, the farthest next.

    Σ_{j≠i} e^{q_i·k_j} < e^{q_i·k_i} with q_i = k_i.
    """
    candidates = _on_sphere(np.random.default_rng(seed).normal(size=(CANDIDATES, d_key)))
    chosen = [0]
    against = np.exp(scores * (candidates @ candidates[0] - 1))  # of those chosen, on each candidate
    others = np.zeros(1)
    while len(chosen) < CANDIDATES:
        best = int(np.argmin(against))
        raised = others + np.exp(scores * (candidates[chosen] @ candidates[best] - 1))
        if against[best] >= 1 or np.any(raised >= 1):
            return len(chosen)
        others = np.append(raised, against[best])
        chosen.append(best)
        against = against + np.exp(scores * (candidates @ candidates[best] - 1))
    return len(chosen)


def in_a_sentence(cells: list[Cell]) -> str:
    """What to remember."""
    by_size = {(cell.d_key, cell.scores): cell for cell in cells}
    small, wide, large = (by_size[at].numbers for at in ((2, 2.0), (2, 8.0), (16, 8.0)))
    return (
        f"Softmax to one percent costs {small:,} numbers of state with keys of 2 and scores within ±2, {wide:,} at ±8, "
        f"and {large:,} with keys of 16: a fixed state can be broad or sharp, and only in few dimensions both."
    )


def _rows(cells: list[Cell]) -> list[Row]:
    rows = []
    for cell in cells:
        what = f"d_k = {cell.d_key}, scores within ±{cell.scores:g}: "
        rows += [
            Row(f"{what}state numbers for 1 %", None, cell.numbers),
            Row(f"{what}degree", None, cell.degree),
            Row(f"{what}bound", None, cell.bound, at_most(WANTED)),
            Row(f"{what}error measured", None, cell.measured, at_most(cell.bound)),
            Row(f"{what}state numbers for 1 % with Taylor's polynomial", None, cell.taylor_numbers),
            Row(f"{what}error of random features in the same state", None, cell.at_random),
            Row(f"{what}keys told apart", None, cell.items),
            Row(f"{what}state bits at least", None, cell.items * cell.d_key),
        ]
    return rows


@artifact(
    "softmax",
    "quick",
    title="Softmax attention in a fixed state",
    tells="Bounds on the error against the size of the state, for every sequence of any length: the best polynomial in "
    "relative error, Taylor's, and random features as measured.",
)
def softmax(budget: str, runs: Path) -> Artifact:
    """Error against state numbers."""
    cells = [study_cell(d_key, scores) for d_key in KEYS for scores in SCORES]
    settings: dict[str, Any] = {
        "in a sentence": in_a_sentence(cells),
        "wanted": WANTED,
        "values": "d_v = d_k, within ±1",
        "steps": STEPS,
        "most degree": MOST_DEGREE,
    }
    return Artifact("softmax", _rows(cells), settings, draw_softmax(cells), tuple(range(SEEDS)))


def draw_softmax(cells: list[Cell]) -> Figure:
    """A panel for each size of keys."""
    figure = new_figure(12.5, 4.6)
    panels = figure.subplots(1, len(KEYS), sharey=True)
    for axes, d_key in zip(panels, KEYS, strict=True):
        _draw_panel(axes, [cell for cell in cells if cell.d_key == d_key])
    panels[0].set_ylabel("error, over the largest value", color=INK)
    figure.text(0.5, 0.115, "numbers in the state", ha="center", color=INK, fontsize=10)
    text = "How large must a state be to hold softmax attention?  Bounds for every sequence of any length"
    figure.text(0.055, 0.985, text, fontsize=11.5, color=INK, va="top", weight="bold")
    caption = (
        "lines: best polynomial in relative error   dashed: Taylor's   dots: random features in a state of the same "
        "size, measured   circles: 1 % reached\nscores within  "
    )
    figure.text(0.055, 0.012, caption, fontsize=8.5, color=FAINT, va="bottom")
    for index, (scores, colour) in enumerate(zip(SCORES, COLOURS, strict=True)):
        figure.text(
            0.135 + 0.045 * index, 0.012, f"±{scores:g}", fontsize=9.5, color=colour, va="bottom", weight="bold"
        )
    figure.subplots_adjust(left=0.055, right=0.99, top=0.86, bottom=0.21, wspace=0.07)
    return figure


def _draw_panel(axes: Axes, cells: list[Cell]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for cell, colour in zip(cells, COLOURS, strict=True):
        for points, style, width in ((cell.ours, "-", 1.8), (cell.taylor, "--", 0.9)):
            shown = np.array([point for point in points if point[1] >= LEAST_SHOWN])
            axes.plot(shown[:, 0], shown[:, 1], style, color=colour, linewidth=width)
        if cell.random:
            axes.plot(*np.array(cell.random).T, ".", color=colour, markersize=4, alpha=0.75)
        axes.plot([cell.numbers], [cell.bound], "o", color=colour, markersize=6, markerfacecolor="white", zorder=3)
    axes.axhline(WANTED, color=FAINT, linewidth=0.7, zorder=0)
    axes.set_ylim(LEAST_SHOWN, 3 * MOST_SHOWN)
    axes.set_xlim(right=4e11)
    axes.set_title(f"keys of {cells[0].d_key}", fontsize=10, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)
