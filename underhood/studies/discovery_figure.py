"""The figure of the study: a row an architecture, a column a task, its loss beside the ladder of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underhood.core.model import ARCHITECTURES
from underhood.pages.appearance import INK
from underhood.pages.drawing import FAINT, new_figure

if TYPE_CHECKING:
    from underhood.studies.discovery import Finding

NAMES = {"gradient-step": "step", "decayed-gradient-step": "decayed step", "k-gradient-steps": "k steps"}
MARGIN = 2.0  # times the losses, on a logarithmic scale
APART = 0.08  # of the axis: names of levels that are closer would lie on each other


def draw_discovery(found: Sequence[Finding], levels: dict[str, dict[str, float]]) -> Figure:
    """Filled circles are the best of the seeds, small ones the others; diamonds start from the compiled weights."""
    figure = new_figure(13.0, 0.36 * len(found) + 2.2)
    columns = figure.subplots(
        1, 1 + len(levels), width_ratios=[0.9, 0.75, 1.4, 1.1, 0.75], gridspec_kw={"wspace": 0.08}
    )
    names, *tasks = columns
    for axes in columns:
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_yticks([])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    names.set_axis_off()
    names.set_xlim(0, 1)
    names.text(1, -0.75, "layers that\nhold attention", ha="right", va="bottom", fontsize=8, color=FAINT)
    for index, one in enumerate(found):
        colour = ARCHITECTURES[one.model].colour
        names.text(0, index, one.label, va="center", fontsize=9, color=colour, weight="bold")
        names.text(
            1, index, "–" if one.holds is None else str(one.holds), ha="right", va="center", fontsize=9, color=INK
        )
    for axes, (task, ladder) in zip(tasks, levels.items(), strict=True):
        _draw_task(axes, found, task, ladder)
    text = "What does each architecture find?  Loss of the best network; grey lines are what algorithms cost"
    figure.text(0.125, 0.995, text, fontsize=11, color=INK, va="top", weight="bold")
    caption = (
        "●  from random weights, the best seed and the others   ◇  trained from compiled weights, each off by 1 %   "
        "▷  the same, off the scale\nWords: the nearest attention or algorithm, and its R²; bold: counts as found."
    )
    figure.text(0.125, 0.01, caption, fontsize=8.5, color=FAINT, va="bottom")
    figure.subplots_adjust(top=0.86, bottom=0.13)
    return figure


def _draw_task(axes: Axes, found: Sequence[Finding], task: str, ladder: dict[str, float]) -> None:
    losses = [loss for one in found for loss in (_loss(one, task), *one.tasks[task]["losses"])]
    losses += [level for level in ladder.values() if level > 0]
    highest = max(losses) * MARGIN
    axes.set_xscale("log")
    spoken = any(_words(one.tasks[task]) for one in found)
    lowest, right = min(losses) / MARGIN, highest * ((max(losses) / min(losses)) ** 0.75 if spoken else 1)
    axes.set_xlim(lowest, right)
    named = 0.0
    for name, level in sorted(ladder.items(), key=lambda entry: entry[1]):
        axes.axvline(level, color="#d5d5d5", linewidth=1, zorder=0)
        if level > named * (right / lowest) ** APART:
            axes.text(level, -0.7, name, rotation=40, fontsize=7.5, color=FAINT, ha="left", va="bottom")
            named = level
    for index, one in enumerate(found):
        colour = ARCHITECTURES[one.model].colour
        loss = _loss(one, task)
        others = one.tasks[task]["losses"]
        axes.plot(others, [index] * len(others), "o", color=colour, markersize=3, alpha=0.5, linewidth=0)
        axes.plot([loss], [index], marker="o", color=colour, markersize=5.5)
        right = max(loss, *others)
        if task == "regression, uniform" and one.start:
            start, gone = one.start["trained"], one.start["trained"] is None or one.start["trained"] > highest
            start = highest if gone else start
            look = {"marker": ">" if gone else "D", "markersize": 4.5, "markerfacecolor": "white"}
            axes.plot([start], [index], color=colour, **look)
            axes.plot([start, loss], [index, index], color=colour, linewidth=0.8, alpha=0.4, zorder=0)
            right = max(start, right)
        weight, colour = ("bold", INK) if one.tasks[task]["found"] else ("normal", FAINT)
        beside = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
        beside |= {"weight": weight, "color": colour}
        axes.annotate(_words(one.tasks[task]), (right, index), **beside)
    axes.set_title(task, fontsize=9.5, color=INK, pad=46)
    axes.set_xlabel("loss", fontsize=8)
    axes.tick_params(labelsize=7.5)


def _loss(one: Finding, task: str) -> float:
    told = one.tasks[task]
    return told["loss"] if "loss" in told else told["held_out_loss"]


def _words(told: dict[str, Any]) -> str:
    if "nearest" in told:
        name = told["nearest"] if told["algorithm"] == "none" else told["algorithm"]
        return f"{NAMES.get(name, name)} {told['algorithm_r2']:.2f}"
    return f"{told['attention_r2']:.2f}" if "attention_r2" in told else ""
