"""Which runs Figures 3, 4 and 5 are made of, in each budget, and their results.

A sweep over widths has the runs of Figure 3, one over architectures those of Figures 4 and 5. Their results are kept
beside the figures (sweep/widths, sweep/architectures), and `underhood reproduce figure4 --budget laptop` draws from
them; only what is missing there is trained. The overnight budget first looks for the learning rate of each
architecture (sweep/rates), by the same short runs for all. While such a sweep is under way, `--so-far` draws what has
ended.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.pages.appearance import COMPARED, stacked
from underhood.studies.findings import REGRESSION, TASKS, TEACHER, D
from underhood.sweeps.spec import Sweep, parse, read_spec
from underhood.sweeps.store import SPEC, results
from underhood.sweeps.sweep import SweepProgress, run_sweep

WIDTHS, ARCHITECTURES = "widths", "architectures"  # the folders of both sweeps
Rates = dict[tuple[str, str, int], float]  # task, architecture, layers → learning rate

# The same runs in all budgets; laptop has fewer steps, seeds and neurons, and a rate that suits few steps. overnight:
# Figure 3 as the paper has it but for two of its seeds and the widest networks, 4 core hours; Figures 4 and 5 shorter,
# about 11 core hours.
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
    run = functools.partial(run_sweep, resume=True, watch=SweepProgress())
    if widths:
        return tuple(run(widths_of(budget), folder / WIDTHS))
    searched = SIZES[budget]["rates"] and best_rates(run(rates_of(budget), folder / "rates"))
    return tuple(run(architectures_of(budget, searched), folder / ARCHITECTURES))


def records_so_far(folder: Path, widths: bool) -> tuple[list[dict[str, Any]], int]:
    """The runs that have ended, of comparisons that are whole, and how many runs the sweep has.

    A width is in it once all architectures with so many layers have been trained at it, with every seed: the best of a
    few would be another answer.
    """
    swept = folder / (WIDTHS if widths else ARCHITECTURES)
    if not (swept / SPEC).exists():
        raise UnderhoodError(f"no runs in {swept}", remedy="Leave out `so_far` to train them.")
    planned, ended = read_spec(swept / SPEC).expanded(), {record["id"]: record for record in results(swept)}

    def compared(run: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(run[name] for name in ("task", "optimizer", "steps", "layers", "hidden"))

    waiting = {compared(run.model_dump()) for run in planned if run.id not in ended}
    whole = [ended[run.id] for run in planned if run.id in ended and compared(ended[run.id]) not in waiting]
    return whole, len(planned)
