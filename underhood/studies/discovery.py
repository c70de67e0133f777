"""What does each architecture find, beside what it can represent? The study's rows and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underhood.core.model import ARCHITECTURES
from underhood.pages.appearance import INK
from underhood.pages.drawing import FAINT, new_figure
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.discovery_runs import (
    FOUND,
    OFF,
    SIZES,
    SMALL_RECALL,
    START_RATES,
    STAYED,
    TASKS,
    Finding,
    findings,
)
from underhood.studies.rows import Row
from underhood.sweeps.store import results
from underhood.training.tasks.associative_recall import AssociativeRecall
from underhood.training.tasks.linear_regression import LinearRegression

NAMES = {"gradient-step": "step", "decayed-gradient-step": "decayed step", "k-gradient-steps": "k steps"}
MARGIN = 2.0  # times the losses, on a logarithmic scale
APART = 0.08  # of the axis: names of levels that are closer would lie on each other


@artifact(
    "discovery",
    "laptop",
    "overnight",
    title="What does each architecture find?",
    tells="Loss of every architecture on four tasks, beside what algorithms cost that could be found. On regression, "
    "the algorithm nearest to the network's predictions and its R²; from the compiled weights, where training leads.",
)
def discovery(budget: str, runs: Path) -> Artifact:
    found = findings(budget, [*ARCHITECTURES], runs / "discovery")
    found.sort(key=lambda one: (not one.held, one.tasks["regression, uniform"]["loss"]))
    rows = [row for one in found for row in rows_of(one)]
    levels = ladder(budget)
    settings = {**SIZES[budget], "tasks": TASKS, "ladder": levels, "off": OFF, "start_rates": START_RATES}
    settings["recall"] = SMALL_RECALL if budget == "laptop" else TASKS["recall"]
    swept = [one for name in ("rates", "seeds") for one in results(runs / "discovery" / name)]
    settings |= {"runs": len(swept), "seconds": round(sum(one.get("seconds", 0.0) for one in swept))}
    figure = draw_discovery(found, levels)
    return Artifact("discovery", rows, settings, figure, seeds=tuple(range(SIZES[budget]["seeds"])))


def ladder(budget: str) -> dict[str, dict[str, float]]:
    """Task → what algorithms cost on it."""
    levels = {"teacher-student": {}}
    for inputs in ("uniform", "sphere"):
        task = LinearRegression(inputs=inputs)
        kaczmarz = 0.5 * (1 - 1 / task.d_x) ** task.examples
        delta = 0.5 * (1 - 1 / task.fourth_moment) ** task.examples
        levels[f"regression, {inputs}"] = {
            "nothing": 0.5,
            "gradient step": task.optimal_loss(),
            "delta rule": delta,
            **({"Kaczmarz": kaczmarz} if inputs == "uniform" else {}),
        }
    recall = AssociativeRecall(**SMALL_RECALL, length=17) if budget == "laptop" else AssociativeRecall()
    return {**levels, "recall": {what: loss for what, loss in recall.ladder().items() if what != "a token"}}


def rows_of(one: Finding) -> list[Row]:
    """A row for each number; the paper has none of them."""
    here: dict[str, Any] = {"represents attention": "no construction" if one.holds is None else f"in {one.holds}"}
    for task, told in one.tasks.items():
        here[f"{task}, loss"] = told["loss"] if "loss" in told else told["held_out_loss"]
        here[f"{task}, median loss over seeds"] = float(np.median(told["losses"]))
        if "attention_r2" in told:
            here[f"{task}, R² of the nearest attention"] = told["attention_r2"]
        if "algorithm" in told:
            here[f"{task}, algorithm"] = told["algorithm"]
            here[f"{task}, nearest algorithm"] = told["nearest"]
            here[f"{task}, R² of it"] = told["algorithm_r2"]
            here[f"{task}, seeds that find an algorithm"] = f"{told['found_by']} of {len(told['losses'])}"
    students = one.tasks["teacher-student"]
    here["finds attention"] = "yes" if students["attention_r2"] >= FOUND else "no"
    here["seeds that find attention"] = f"{students['found_by']} of {len(students['losses'])}"
    if one.start is not None:
        here["from the compiled weights, off by 1 %: loss before training"] = one.start["perturbed"]
        here["from the compiled weights, off by 1 %: loss after training"] = one.start["trained"]
        stays = one.start["trained"] is not None and one.start["trained"] <= STAYED * one.start["optimal"]
        here["stays at the compiled weights"] = "yes" if stays else "no"
    return [Row(f"{one.label}: {what}", None, value) for what, value in here.items()]


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
    names.text(1, -0.75, "layers that attention\nneeds", ha="right", va="bottom", fontsize=8, color=FAINT)
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
