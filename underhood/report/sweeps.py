"""Sections 3.2, 3.3 and 4.3, Figures 3, 4 and 5: what widths and architectures find attention, and learn in context.

A sweep over widths has the runs of Figure 3, one over architectures those of Figures 4 and 5. Their results are kept
beside the figures (sweep/widths, sweep/architectures), and `underhood reproduce figure4 --budget laptop` draws from
them; only what is missing there is trained. The overnight budget first looks for the learning rate of each
architecture (sweep/rates), by the same short runs for all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from underhood.model import ARCHITECTURES
from underhood.report.architectures import COMPARED, stacked
from underhood.report.artifact import Artifact, Row, artifact
from underhood.report.charts import Chart, Curve, curve_over_seeds
from underhood.report.findings import (
    REGRESSION,
    TASKS,
    TEACHER,
    WIDTHS,
    D,
    findings_3,
    findings_4,
    findings_5,
    gradient_step_loss,
)
from underhood.report.plots import draw_charts
from underhood.sweep.spec import Sweep, parse
from underhood.sweep.sweep import Teller, run_sweep

Records = list[dict[str, Any]]
Rates = dict[tuple[str, str, int], float]  # task, architecture, layers → learning rate

# The same runs in all budgets; laptop has fewer steps, seeds and neurons, and a rate that suits few steps. overnight:
# Figure 3 as the paper has it but for two of its seeds and the widest networks, 4 core hours; Figures 4 and 5 shorter,
# 16 core hours.
WIDTHS_TRIED = {TEACHER: [8, 14, 20, 27, 34, 41, 54, 68, 96], REGRESSION: [3, 4, 6, 8, 10, 12, 16, 20, 27, 40, 80]}
SECOND_ORDER = {TEACHER: [14, 20, 27, 34, 41], REGRESSION: [4, 6, 8, 10, 12, 16, 27]}
SIZES = {
    "laptop": {
        "width_steps": {TEACHER: 15_000, REGRESSION: 30_000},
        "width_seeds": 3,
        "widest": 96,
        "second_order": {"steps": 60, "restarts": 1, "seeds": 1},
        "hidden": [8, 16, 32],
        "steps": {TEACHER: 4_000, REGRESSION: 8_000},
        "seeds": 2,
        "long": {"hidden": 64, "steps": 60_000, "seeds": 1},
        "learning_rate": 3e-3,
        "rates": None,
    },
    "overnight": {
        "width_steps": {TEACHER: 781_000, REGRESSION: 300_000},
        "width_seeds": 2,
        "widest": 68,
        "second_order": {"steps": 60, "restarts": 1, "seeds": 1},
        "hidden": [8, 16, 32, 64],
        "steps": {TEACHER: 100_000, REGRESSION: 100_000},
        "seeds": 3,
        "long": None,
        "learning_rate": 1e-3,
        "rates": {"learning_rate": [1e-3, 3e-3, 1e-2, 3e-2], "hidden": 32, "steps": 10_000},
    },
    "paper": {
        "width_steps": {TEACHER: 781_000, REGRESSION: 300_000},
        "width_seeds": 4,
        "widest": 96,
        "second_order": {"steps": 200, "restarts": 4, "seeds": 4},
        "hidden": [16, 32, 64, 128],
        "steps": {TEACHER: 781_000, REGRESSION: 300_000},
        "seeds": 4,
        "long": None,  # all of them are
        "learning_rate": 1e-3,
        "rates": None,
    },
}


def widths_of(budget: str) -> Sweep:
    """Figure 3, as `underhood sweep` takes it."""
    sizes, runs = SIZES[budget], []
    for task in TASKS:
        common = _common(task)
        first_order = {"steps": sizes["width_steps"][task], "learning_rate": sizes["learning_rate"]}
        widths = [width for width in WIDTHS_TRIED[task] if width <= sizes["widest"]]
        runs.append({**common, **first_order, "hidden": widths, "seeds": sizes["width_seeds"]})
        runs.append({**common, "hidden": SECOND_ORDER[task], "optimizer": "levenberg", **sizes["second_order"]})
    return parse({"name": f"figure 3, {budget}", "runs": runs})


def architectures_of(budget: str, rates: Rates | None = None) -> Sweep:
    """Figures 4 and 5, with the learning rate of the budget where `rates` has none."""
    sizes, runs, usual = SIZES[budget], [], SIZES[budget]["learning_rate"]
    for task, model, layers in _kinds_trained():
        common = {**_common(task), "model": model, "learning_rate": (rates or {}).get((task, model, layers), usual)}
        others = {"hidden": sizes["hidden"], "steps": sizes["steps"][task], "seeds": sizes["seeds"]}
        runs.append({**common, "layers": layers, "probe": True, **others})
        if task == TEACHER and layers == 1 and sizes["long"]:
            # Who comes how close to a teacher shows late: one width beyond the transition, for longer.
            runs.append({**common, "probe": True, **sizes["long"]})
    return parse({"name": f"figures 4 and 5, {budget}", "runs": runs})


def rates_of(budget: str) -> Sweep:
    """The search for learning rates: short runs at one width, with each rate."""
    kinds = _kinds_trained()
    runs = [{**_common(task), "model": model, "layers": n, **SIZES[budget]["rates"]} for task, model, n in kinds]
    return parse({"name": f"learning rates, {budget}", "runs": runs})


def best_rates(records: Iterable[dict[str, Any]]) -> Rates:
    """The rate of least loss for each task and architecture; a rate counts as the worse of itself and the next larger.

    The runs that follow are longer and up to twice as wide: a rate just below one that fails at 32 neurons may fail
    there. So the largest rate is never chosen, and a run that diverged rules out the rate below it, too.
    """
    losses: dict[tuple[str, str, int], dict[float, float]] = {}
    for record in records:
        kind = (record["task"], record["model"], record["layers"])
        loss = record["held_out_loss"] if record["status"] == "done" else inf
        losses.setdefault(kind, {})[record["learning_rate"]] = loss
    best: Rates = {}
    for kind, found in losses.items():
        worse = {rate: max(found[rate], found[larger]) for rate, larger in pairwise(sorted(found))}
        best[kind] = min(worse, key=worse.__getitem__)
    return best


def _common(task: str) -> dict[str, Any]:
    return {"task": task, "weight_decay": 0.0, **({"d": D} if task == TEACHER else {})}


def _kinds_trained() -> list[tuple[str, str, int]]:
    """Task, architecture and layers: one, and two for those that can be stacked."""
    layers = {name: (1, 2) if name in stacked() else (1,) for name in COMPARED}
    return [(task, name, n) for task in TASKS for name in COMPARED for n in layers[name]]


@functools.cache
def records_of(budget: str, folder: Path, widths: bool) -> tuple[dict[str, Any], ...]:
    """The runs of Figure 3, or of Figures 4 and 5; those that the folder does not hold yet are trained."""
    run = functools.partial(run_sweep, resume=True, watch=Teller())
    if widths:
        return tuple(run(widths_of(budget), folder / "widths"))
    searched = SIZES[budget]["rates"] and best_rates(run(rates_of(budget), folder / "rates"))
    return tuple(run(architectures_of(budget, searched), folder / "architectures"))


def _make(
    name: str,
    budget: str,
    runs: Path,
    charts: Callable[[Records, dict[str, Any]], tuple[Chart, ...]],
    findings: Callable[[Records], list[Row]],
    *,
    legend: bool = False,
) -> Artifact:
    # Beside the folder of runs, which is not kept: a line a run is small, and all that the figures need.
    swept = records_of(budget, runs.parent / "sweep", name == "figure3")
    records = [record for record in swept if record["status"] == "done"]
    made = charts(records, SIZES[budget])
    settings = {**SIZES[budget], "d": D, "runs": len(records), "seconds": round(sum(r["seconds"] for r in records))}
    seeds = tuple(sorted({record["seed"] for record in records}))
    figure = draw_charts(made, legend=legend)
    return Artifact(name, findings(records), settings, figure, seeds=seeds, charts=made)


@artifact(
    "figure3",
    "laptop",
    "overnight",
    "paper",
    title="How large a network must be to find attention",
    tells="Loss against the number of hidden neurons. Lines are medians over seeds, bands span the seeds.",
)
def figure3(budget: str, runs: Path) -> Artifact:
    """Loss against width: where AdamW finds attention, and where the second-order solver does."""
    return _make("figure3", budget, runs, _charts_3, findings_3)


@artifact(
    "figure4",
    "laptop",
    "overnight",
    "paper",
    title="Which architectures find attention",
    tells="Loss of each architecture against its size, and against its distance from attention. Lines are medians "
    "over seeds, vertical strokes span the seeds.",
)
def figure4(budget: str, runs: Path) -> Artifact:
    """Architectures on both tasks, one layer each; wider and for longer, who comes close to the teacher."""
    return _make("figure4", budget, runs, _charts_4, findings_4)


@artifact(
    "figure5",
    "laptop",
    "overnight",
    "paper",
    title="All architectures, one layer and two",
    tells="Training and validation loss against parameters and width. Dashes are two layers. The last chart shows "
    "whether networks close to attention learn better in context.",
)
def figure5(budget: str, runs: Path) -> Artifact:
    """All of them with one layer and two, against parameters and width, and closeness to attention."""
    return _make("figure5", budget, runs, _charts_5, findings_5, legend=True)


def _charts_3(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    marks = tuple((f"{name} ({size})", float(size)) for name, size in WIDTHS.items())
    least = ("minimal for this task (12)", 12.0)
    charts = []
    for title, task, quantity, label in (
        ("A  teacher-student", TEACHER, "held_out_loss", "loss"),
        ("B  in-context regression", REGRESSION, "excess", "loss − optimal gradient step's"),
    ):
        curves = []
        for dash, (name, optimizer) in enumerate((("AdamW", "adamw"), ("second order", "levenberg"))):
            chosen = [r for r in records if r["task"] == task and r["optimizer"] == optimizer]
            if optimizer == "adamw":
                chosen = [r for r in chosen if r["model"] == "gated-rnn" and r["steps"] == sizes["width_steps"][task]]
            curves.append(_curve(name, chosen, "hidden", quantity, model="gated-rnn", dash=dash))
        shown = marks if task == TEACHER else (*marks, least)
        charts.append(Chart(title, "hidden neurons", label, tuple(curves), marks=shown))
    return tuple(charts)


def _charts_4(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    chosen = [r for r in compared(records, sizes) if r["layers"] == 1]
    charts = (
        _by_model("A  teacher-student", chosen, TEACHER, "hidden", "validation_loss"),
        _by_model("B  in-context regression", chosen, REGRESSION, "hidden", "validation_loss"),
    )
    # Runs that are longer where the budget has some, else the widest of these.
    longer = sizes["long"] or {"hidden": max(sizes["hidden"]), "steps": sizes["steps"][TEACHER]}
    wide = [r for r in records if r["probe"] and r["layers"] == 1]
    late = [r for r in wide if (r["task"], r["hidden"], r["steps"]) == (TEACHER, longer["hidden"], longer["steps"])]
    titles = {
        f"C  teacher-student, {longer['hidden']} neurons, {longer['steps']:,} steps": "parameters",
        "D  the same networks by distance from attention": "distance",
    }
    clouds = (_cloud(title, late, x) for title, x in titles.items())
    return (*charts, *clouds)


def _charts_5(records: Records, sizes: dict[str, Any]) -> tuple[Chart, ...]:
    chosen = compared(records, sizes)
    charts = [
        _by_model(f"{title}, {what}", chosen, task, x, quantity)
        for title, task in (("teacher-student", TEACHER), ("in-context regression", REGRESSION))
        for what, quantity in (("training", "held_out_loss"), ("validation", "validation_loss"))
        for x in ("parameters", "hidden")
    ]
    title = "in-context regression: distance from attention against loss"
    levels = (("gradient step", gradient_step_loss(validation=True)),)
    cloud = _cloud(title, [r for r in chosen if r["task"] == REGRESSION], "distance")
    return (*charts, dataclasses.replace(cloud, levels=levels))


def compared(records: Iterable[dict[str, Any]], sizes: dict[str, Any]) -> Records:
    """The runs of Figures 4 and 5."""
    return [r for r in records if r["probe"] and r["steps"] == sizes["steps"][r["task"]]]


LABELS = {
    "hidden": "hidden neurons",
    "parameters": "parameters",
    "held_out_loss": "training loss",
    "validation_loss": "validation loss",
    "distance": "1 − R² of the nearest attention",
}


def _by_model(title: str, records: Records, task: str, x: str, quantity: str) -> Chart:
    kinds = _kinds([r for r in records if r["task"] == task])
    curves = tuple(_curve(name, alike, x, quantity, model, layers - 1) for (name, model, layers), alike in kinds)
    optimum = gradient_step_loss(validation=quantity == "validation_loss")
    levels = (("gradient step", optimum),) if task == REGRESSION else ()
    return Chart(title, LABELS[x], LABELS[quantity], curves, levels=levels)


def _cloud(title: str, records: Records, x: str) -> Chart:
    """A point for each run: its validation loss against its size, or against its distance from attention."""
    curves = []
    for (name, model, layers), alike in _kinds(records):
        places = [max(1 - r["attention_r2"], 1e-9) if x == "distance" else float(r[x]) for r in alike]
        losses = [r["validation_loss"] for r in alike]
        curves.append(Curve(name, places, losses, losses, losses, model, layers - 1))
    return Chart(title, LABELS[x], LABELS["validation_loss"], tuple(curves), joined=False)


def _kinds(records: Records) -> list[tuple[tuple[str, str, int], Records]]:
    """(label, architecture, layers) and its runs; layers are in the label where they differ among the records."""
    several = len({r["layers"] for r in records}) > 1
    found = []
    for layers in sorted({r["layers"] for r in records}):
        for model in COMPARED:
            alike = [r for r in records if (r["model"], r["layers"]) == (model, layers)]
            label = ARCHITECTURES[model].label
            if several and model in stacked():
                label = f"{label}, {layers} layer{'s' * (layers > 1)}"
            if alike:
                found.append(((label, model, layers), alike))
    return found


def _curve(name: str, records: Records, x: str, quantity: str, model: str, dash: int) -> Curve:
    at: dict[float, list[float]] = {}
    for record in records:
        # A paired excess is a difference of two losses: below its noise it may come out negative.
        at.setdefault(record[x], []).append(max(record[quantity], 1e-9) if quantity == "excess" else record[quantity])
    return curve_over_seeds(name, list(at.items()), model, dash)
