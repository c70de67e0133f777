"""Sections 3.2, 3.3 and 4.3, Figures 3, 4 and 5: what widths and architectures find attention, and learn in context.

One sweep holds the runs of all three figures. Its results stand beside the figures (sweep/results.jsonl), so that
they are drawn anew without training; whatever is missing there is trained.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from underhood.data import LinearRegression
from underhood.report.artifact import Artifact, Row, artifact
from underhood.report.charts import Chart, Curve, curve_over_seeds, draw_chart
from underhood.report.drawing import new_figure
from underhood.report.findings import WIDTHS, findings_3, findings_4, findings_5
from underhood.sweep.spec import Sweep, parse
from underhood.sweep.sweep import Teller, run_sweep

TEACHER, REGRESSION, D = "teacher-student", "linear-regression", 6
GATED = {"gated-rnn": "gated RNN", "gated-rnn-dense": "gated RNN, dense"}
STACKS = {"lru": "LRU", "lru-in-out": "LRU In-Out", "lru-in-skip": "LRU In-Skip", "lstm": "LSTM", "gru": "GRU"}
NAMES = {**GATED, **STACKS}

Records = list[dict[str, Any]]

# The same runs in both budgets; laptop has fewer steps, seeds and neurons, and a rate that suits few steps.
WIDTHS_TRIED = {TEACHER: [8, 14, 20, 27, 34, 41, 54, 68, 96], REGRESSION: [3, 4, 6, 8, 10, 12, 16, 20, 27, 40, 80]}
SECOND_ORDER = {TEACHER: [14, 20, 27, 34, 41], REGRESSION: [4, 6, 8, 10, 12, 16, 27]}
SIZES = {
    "laptop": {
        "width_steps": {TEACHER: 15_000, REGRESSION: 30_000},
        "width_seeds": 3,
        "second_order": {"steps": 60, "restarts": 1, "seeds": 1},
        "hidden": [8, 16, 32],
        "steps": {TEACHER: 4_000, REGRESSION: 8_000},
        "seeds": 2,
        "long": {"hidden": 64, "steps": 60_000, "seeds": 1},
        "learning_rate": 3e-3,
    },
    "paper": {
        "width_steps": {TEACHER: 781_000, REGRESSION: 300_000},
        "width_seeds": 4,
        "second_order": {"steps": 200, "restarts": 4, "seeds": 4},
        "hidden": [16, 32, 64, 128],
        "steps": {TEACHER: 781_000, REGRESSION: 300_000},
        "seeds": 4,
        "long": None,  # all of them are
        "learning_rate": 1e-3,
    },
}


def sweep_of(budget: str) -> Sweep:
    """The specification of all three figures, as `underhood sweep` takes it."""
    sizes = SIZES[budget]
    rate = {"learning_rate": sizes["learning_rate"]}
    runs: list[dict[str, Any]] = []
    for task in (TEACHER, REGRESSION):
        common = {"task": task, "weight_decay": 0.0, **({"d": D} if task == TEACHER else {})}
        widths = {**common, **rate, "hidden": WIDTHS_TRIED[task], "steps": sizes["width_steps"][task]}
        runs.append({**widths, "seeds": sizes["width_seeds"]})
        runs.append({**common, "hidden": SECOND_ORDER[task], "optimizer": "levenberg", **sizes["second_order"]})
        others = {**common, **rate, "hidden": sizes["hidden"], "steps": sizes["steps"][task], "probe": True}
        others["seeds"] = sizes["seeds"]
        runs.append({**others, "model": list(GATED)})
        runs.append({**others, "model": list(STACKS), "layers": [1, 2]})
        if task == TEACHER and sizes["long"]:
            # Who comes how close to a teacher shows late: one width beyond the transition, for longer.
            runs.append({**common, **rate, "model": list(NAMES), "probe": True, **sizes["long"]})
    return parse({"name": f"figures 3 to 5, {budget}", "runs": runs})


@functools.cache
def records_of(budget: str, folder: Path) -> tuple[dict[str, Any], ...]:
    """The runs of the figures; those that do not stand in the folder yet are trained."""
    return tuple(run_sweep(sweep_of(budget), folder, resume=True, watch=Teller()))


def _make(
    name: str,
    budget: str,
    runs: Path,
    charts: Callable[[Records, dict[str, Any]], tuple[Chart, ...]],
    findings: Callable[[Records], list[Row]],
) -> Artifact:
    # Not among the runs, which are not kept: a line a run is small, and all that the figures need.
    records = [record for record in records_of(budget, runs.parent / "sweep") if record["status"] == "done"]
    made = charts(records, SIZES[budget])
    settings = {**SIZES[budget], "d": D, "runs": len(records), "seconds": round(sum(r["seconds"] for r in records))}
    figure = new_figure(5.2 * min(len(made), 2), 3.9 * -(-len(made) // 2))
    for axes, chart in zip(np.ravel(figure.subplots(-(-len(made) // 2), min(len(made), 2))), made, strict=False):
        draw_chart(axes, chart, legend=len(made) % 2 == 0)
    for axes in figure.axes[len(made) :]:
        axes.set_visible(False)
    if len(made) % 2:  # the empty place holds the names, which would cover the curves
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="center", bbox_to_anchor=(0.75, 0.5 / -(-len(made) // 2)), ncol=2, fontsize=9
        )
    figure.tight_layout()
    seeds = tuple(sorted({record["seed"] for record in records}))
    return Artifact(name, findings(records), settings, figure, seeds=seeds, charts=made)


@artifact("figure3", "laptop", "paper")
def figure3(budget: str, runs: Path) -> Artifact:
    """Loss against width: where AdamW finds attention, and where the second-order solver does."""
    return _make("figure3", budget, runs, _charts_3, findings_3)


@artifact("figure4", "laptop", "paper")
def figure4(budget: str, runs: Path) -> Artifact:
    """Architectures on both tasks, one layer each."""
    return _make("figure4", budget, runs, _charts_4, findings_4)


@artifact("figure5", "laptop", "paper")
def figure5(budget: str, runs: Path) -> Artifact:
    """All forms with one layer and two, against parameters and width, and closeness to attention."""
    return _make("figure5", budget, runs, _charts_5, findings_5)


def _charts_3(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    marks = tuple((f"{name} ({size})", float(size)) for name, size in WIDTHS.items())
    least = ("minimal for this task (12)", 12.0)
    charts = []
    for title, task, quantity, label in (
        ("A  teacher-student", TEACHER, "held_out_loss", "loss"),
        ("B  in-context regression", REGRESSION, "excess", "loss − optimal gradient step's"),
    ):
        curves = []
        for name, optimizer in (("AdamW", "adamw"), ("second order", "levenberg")):
            chosen = [r for r in records if r["task"] == task and r["optimizer"] == optimizer]
            if optimizer == "adamw":
                chosen = [r for r in chosen if r["model"] == "gated-rnn" and r["steps"] == sizes["width_steps"][task]]
            curves.append(_curve(name, chosen, "hidden", quantity))
        shown = marks if task == TEACHER else (*marks, least)
        charts.append(Chart(title, "hidden neurons", label, tuple(curves), marks=shown))
    return tuple(charts)


def _charts_4(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    chosen = [r for r in compared(records, sizes) if r["layers"] == 1]
    charts = (
        _by_model("A  teacher-student", chosen, TEACHER, "hidden", "validation_loss"),
        _by_model("B  in-context regression", chosen, REGRESSION, "hidden", "validation_loss"),
    )
    long = sizes["long"]
    if long is None:
        return charts
    late = [r for r in records if r["probe"] and r["task"] == TEACHER and r["steps"] == long["steps"]]
    title = f"C  teacher-student, {long['hidden']} neurons, {long['steps']:,} steps"
    return (
        *charts,
        dataclasses.replace(_by_model(title, late, TEACHER, "parameters", "validation_loss"), joined=False),
    )


def _charts_5(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    chosen = compared(records, sizes)
    charts = [
        _by_model(f"{title}, {what}", chosen, task, x, quantity)
        for title, task in (("teacher-student", TEACHER), ("in-context regression", REGRESSION))
        for what, quantity in (("training", "held_out_loss"), ("validation", "validation_loss"))
        for x in ("parameters", "hidden")
    ]
    cloud = []
    for model, name in NAMES.items():
        points = [r for r in chosen if r["model"] == model and r["task"] == REGRESSION]
        x = [max(1 - r["attention_r2"], 1e-6) for r in points]
        y = [r["validation_loss"] for r in points]
        cloud.append(Curve(name, x, y, y, y))
    title = "in-context regression: distance from attention against loss"
    levels = (("gradient step", LinearRegression().optimal_loss(validation=True)),)
    charts.append(
        Chart(title, "1 − R² of the nearest attention", "validation loss", tuple(cloud), (), levels, joined=False)
    )
    return tuple(charts)


def compared(records: Iterable[dict[str, Any]], sizes: dict[str, Any]) -> Records:
    """The runs of Figures 4 and 5."""
    return [r for r in records if r["probe"] and r["steps"] == sizes["steps"][r["task"]]]


def _by_model(title: str, records: Records, task: str, x: str, quantity: str) -> Chart:
    chosen = [r for r in records if r["task"] == task]
    several = len({r["layers"] for r in chosen}) > 1
    curves = []
    for layers in (1, 2):
        for model, name in NAMES.items():
            points = [r for r in chosen if (r["model"], r["layers"]) == (model, layers)]
            if points:
                curves.append(_curve(f"{name}, {layers}" if several and model in STACKS else name, points, x, quantity))
    optimum = LinearRegression().optimal_loss(validation=quantity == "validation_loss")
    levels = (("gradient step", optimum),) if task == REGRESSION else ()
    labels = {"hidden": "hidden neurons", "held_out_loss": "training loss", "validation_loss": "validation loss"}
    return Chart(title, labels.get(x, x), labels[quantity], tuple(curves), levels=levels)


def _curve(name: str, records: Records, x: str, quantity: str) -> Curve:
    at: dict[float, list[float]] = {}
    for record in records:
        # A paired excess is a difference of two losses: below its noise it may come out negative.
        at.setdefault(record[x], []).append(max(record[quantity], 1e-9) if quantity == "excess" else record[quantity])
    return curve_over_seeds(name, list(at.items()))
