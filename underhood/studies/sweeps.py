"""Sections 3.2, 3.3 and 4.3, Figures 3, 4 and 5: what widths and architectures find attention, and learn in context."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from underhood.attention.teachers import random_attention
from underhood.core.errors import UnderhoodError
from underhood.core.model import ARCHITECTURES
from underhood.pages.appearance import COMPARED, stacked
from underhood.pages.charts import Chart, Curve, curve_over_seeds
from underhood.pages.plots import draw_charts
from underhood.studies.artifact import Artifact, artifact
from underhood.studies.findings import (
    REGRESSION,
    TASKS,
    TEACHER,
    WIDTHS,
    D,
    Records,
    distance,
    exact_distance,
    findings_3,
    findings_4,
    findings_5,
    gradient_step_loss,
    on_both_tasks,
)
from underhood.studies.plans import SIZES, records_of, records_so_far
from underhood.studies.rows import Row, at_most, equals
from underhood.training.second_order.levenberg import fit_levenberg
from underhood.training.tasks.task import draw
from underhood.training.tasks.teacher_student import TeacherStudent


def _make(
    name: str,
    budget: str,
    runs: Path,
    charts: Callable[[Records, dict[str, Any]], tuple[Chart, ...]],
    findings: Callable[[Records], list[Row]],
    *,
    so_far: bool,
    legend: bool = False,
) -> Artifact:
    # Beside the folder of runs, which is not kept: one line per run is small, and all that the figures need.
    folder, widths = runs.parent / "sweep", name == "figure3"
    swept, planned = records_so_far(folder, widths) if so_far else (records_of(budget, folder, widths), 0)
    records = [record for record in swept if record["status"] == "done"]
    if {record["task"] for record in records if record["layers"] == 1} != set(TASKS):
        raise UnderhoodError(f"no runs for {name} yet that can be compared", remedy="Wait for more to end.")
    made = charts(records, SIZES[budget])
    settings = {**SIZES[budget], "d": D, "runs": len(records), "seconds": round(sum(r["seconds"] for r in records))}
    seeds = tuple(sorted({record["seed"] for record in records}))
    rows = findings(records)
    if len(swept) < planned:
        rows.insert(0, Row("runs so far", None, f"{len(swept)} of {planned}", equals(planned), judged=len(swept)))
    return Artifact(name, rows, settings, draw_charts(made, legend=legend), seeds=seeds, charts=made)


SWEPT = ("laptop", "overnight", "paper")


@artifact(
    "figure3",
    "quick",
    "laptop",
    "overnight",
    "paper",
    swept=SWEPT,
    title="How large a network must be to find attention",
    tells="Loss against the number of hidden neurons. Lines are medians over seeds, bands span the seeds.",
)
def figure3(budget: str, runs: Path, *, so_far: bool = False) -> Artifact:
    """Loss against width: where AdamW finds attention, and where the second-order solver does."""
    if budget == "quick":
        return _second_order_alone()
    return _make("figure3", budget, runs, _charts_3, findings_3, so_far=so_far)


QUICK_WIDTHS, QUICK_D, QUICK_SEQUENCES, SOLVED = (8, 11, 14, 17, 20), 4, (400, 256), 1e-12


def _second_order_alone() -> Artifact:
    """The curve of A that takes seconds: the second-order solver, on Table 1's teacher of d = 4."""
    task = TeacherStudent(random_attention(QUICK_D, seed=0))
    training, held_out = (draw(task, 0, size, part=part) for part, size in enumerate(QUICK_SEQUENCES))
    losses = {}
    for hidden in QUICK_WIDTHS:
        found = fit_levenberg(*training, held_out=held_out, hidden=hidden, max_iterations=60, restarts=1, prune=False)
        losses[hidden] = found.held_out_loss
    full, compact = QUICK_D * (QUICK_D + 1), QUICK_D * (QUICK_D + 1) // 2 + QUICK_D
    solved = [hidden for hidden, loss in losses.items() if loss <= SOLVED]
    rows = [
        Row("A: least width that the second-order solver solves", None, min(solved, default=None), at_most(full)),
        Row(f"A: its loss at {full} neurons", None, losses[full], at_most(SOLVED)),
    ]
    curve = curve_over_seeds("second order", [(hidden, [loss]) for hidden, loss in losses.items()], "gated-rnn", 1)
    marks = ((f"full ({full})", float(full)), (f"compact ({compact})", float(compact)))
    chart = Chart(f"A  teacher-student, d = {QUICK_D}", "hidden neurons", "loss", (curve,), marks=marks)
    settings = {"d": QUICK_D, "sequences": QUICK_SEQUENCES, "optimizer": "levenberg", "max_iterations": 60}
    return Artifact("figure3", rows, settings, draw_charts((chart,)), seeds=(0,), charts=(chart,))


@artifact(
    "figure4",
    "laptop",
    "overnight",
    "paper",
    swept=SWEPT,
    title="Which architectures find attention",
    tells="Loss of each architecture against its size, and against its distance from attention. Lines are medians "
    "over seeds, vertical strokes span the seeds.",
)
def figure4(budget: str, runs: Path, *, so_far: bool = False) -> Artifact:
    """Architectures on both tasks, one layer each; wider and for longer, who comes close to the teacher."""
    return _make("figure4", budget, runs, _charts_4, findings_4, so_far=so_far)


@artifact(
    "figure5",
    "laptop",
    "overnight",
    "paper",
    swept=SWEPT,
    title="All architectures, one layer and two",
    tells="Training and validation loss against parameters and width. Dashes are two layers. The last two charts "
    "show whether networks close to attention learn better in context: close by their loss on a teacher's outputs, and "
    "by the attention nearest to them; the dotted line is where an exact answer is.",
)
def figure5(budget: str, runs: Path, *, so_far: bool = False) -> Artifact:
    """All of them with one layer and two, against parameters and width, and closeness to attention."""
    return _make("figure5", budget, runs, _charts_5, findings_5, so_far=so_far, legend=True)


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
    # The longest runs, and of those the widest networks.
    wide = [r for r in records if r["probe"] and (r["task"], r["layers"]) == (TEACHER, 1)]
    steps, hidden = max((r["steps"], r["hidden"]) for r in wide)
    late = [r for r in wide if (r["steps"], r["hidden"]) == (steps, hidden)]
    titles = {
        f"C  teacher-student, {hidden} neurons, {steps:,} steps": "parameters",
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
    levels = (("gradient step", gradient_step_loss(validation=True)),)
    if pairs := on_both_tasks(chosen):  # none yet, in a sweep that is under way
        cloud = _cloud("in-context regression against teacher-student", pairs, TEACHER)
        charts.append(dataclasses.replace(cloud, levels=levels))
    regression = [r for r in chosen if r["task"] == REGRESSION]
    cloud = _cloud("in-context regression against distance from attention", regression, "distance")
    marks = (("the exact answer", exact_distance()),)
    return (*charts, dataclasses.replace(cloud, levels=levels, marks=marks))


def compared(records: Iterable[dict[str, Any]], sizes: dict[str, Any]) -> Records:
    """The runs of Figures 4 and 5."""
    return [r for r in records if r["probe"] and r["steps"] == sizes["steps"][r["task"]]]


LABELS = {
    "hidden": "hidden neurons",
    "parameters": "parameters",
    "held_out_loss": "training loss",
    "validation_loss": "validation loss",
    "distance": "1 − R² of the nearest attention",
    TEACHER: "validation loss on teacher-student",
}


def _by_model(title: str, records: Records, task: str, x: str, quantity: str) -> Chart:
    kinds = _kinds([r for r in records if r["task"] == task])
    curves = tuple(_curve(name, alike, x, quantity, model, layers - 1) for (name, model, layers), alike in kinds)
    optimum = gradient_step_loss(validation=quantity == "validation_loss")
    levels = (("gradient step", optimum),) if task == REGRESSION else ()
    return Chart(title, LABELS[x], LABELS[quantity], curves, levels=levels)


def _cloud(title: str, records: Records, x: str) -> Chart:
    """A point for each run: its validation loss against its size, or against how far from attention it is."""
    curves = []
    for (name, model, layers), alike in _kinds(records):
        places = [distance(r) if x == "distance" else float(r[x]) for r in alike]
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
