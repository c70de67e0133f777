"""How the cost of a training step grows, and what the whole paper costs; results/bench/scale.json.

python -m benchmarks.scale

Steps are timed on one core. The paper's cost is the sum over its runs (`widths_of("paper")`,
`architectures_of("paper")`, and the long runs of Sections 3.1 and 4.2) of steps times the time of a step. That is
measured for each architecture and task at two widths with one layer; between and beyond them it is taken as a power of
the width, and two layers as twice one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.measure import show, store
from benchmarks.training import STEPS, engine

ROUNDS = 3
CORES = (2, 100)
MEASURED = (16, 64)  # hidden neurons


def step_seconds(model: str, task: Any, hidden: int, layers: int = 1) -> float:
    """Seconds of one training step, the best of a few rounds."""
    import underhood as uh

    run = engine(uh.make_model(model, task.d, hidden=hidden, d_out=task.d_out, layers=layers), task)
    run()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        best = min(best, (time.perf_counter() - began) / STEPS)
    return best


def growth() -> list[dict[str, Any]]:
    """The gated RNN on a teacher, one size at a time."""
    import underhood as uh
    from underhood.training.tasks.teacher_student import TeacherStudent

    sizes: Iterable[tuple[str, int, int, int]] = (
        *(("n", 4, n, 32) for n in (16, 32, 64, 128)),
        *(("d", d, 64, 32) for d in (2, 4, 8, 12)),
        *(("t", 4, 64, t) for t in (16, 32, 64, 128)),
    )
    found = []
    for axis, d, n, t in sizes:
        seconds = step_seconds("gated-rnn", TeacherStudent(uh.random_attention(d), t), n)
        found.append({"axis": axis, "d": d, "n": n, "t": t, "ms": 1e3 * seconds})
    return found


class Steps:
    """Seconds of a step by shape."""

    def __init__(self) -> None:
        self.measured: dict[tuple[str, str, int], float] = {}

    def seconds(self, run: Any) -> float:
        times = [self._at(run, hidden) for hidden in MEASURED]
        power = math.log(times[1] / times[0]) / math.log(MEASURED[1] / MEASURED[0])
        return run.layers * times[0] * (run.hidden / MEASURED[0]) ** power

    def _at(self, run: Any, hidden: int) -> float:
        shape = (run.task, run.model, hidden)
        if shape not in self.measured:
            self.measured[shape] = step_seconds(run.model, run.make_task(), hidden)
        return self.measured[shape]


def paper_cost() -> dict[str, Any]:
    """Core hours of every run of the paper."""
    from underhood.studies.findings import REGRESSION, TEACHER
    from underhood.studies.plans import architectures_of, widths_of
    from underhood.training.config import SECTION_3_1, SECTION_3_1_HIDDEN, SECTION_4_2, SECTION_4_2_HIDDEN
    from underhood.training.specification import RunSpec

    steps = Steps()
    swept = [*widths_of("paper").expanded(), *architectures_of("paper").expanded()]
    first_order = [run for run in swept if run.optimizer == "adamw"]
    jobs = [run.steps * steps.seconds(run) for run in first_order]
    student = SECTION_3_1.steps * steps.seconds(RunSpec(task=TEACHER, hidden=SECTION_3_1_HIDDEN))
    regression = 4 * SECTION_4_2.steps * steps.seconds(RunSpec(task=REGRESSION, hidden=SECTION_4_2_HIDDEN))
    total = sum(jobs) + student + regression
    # A run stays on one core, so that more cores than runs do not help, and the longest run bounds them all.
    hours = {f"{cores} cores": max(total / cores, max(jobs)) / 3600 for cores in CORES}
    shapes = [
        {"task": task, "model": model, "hidden": hidden, "ms": 1e3 * value}
        for (task, model, hidden), value in steps.measured.items()
    ]
    return {
        "runs": len(jobs) + 5,
        "core_hours": {"table1": student / 3600, "table2": regression / 3600, "figures": sum(jobs) / 3600},
        "total_core_hours": total / 3600,
        "longest_run_hours": max(jobs) / 3600,
        "hours": hours,
        "steps": shapes,
    }


def main() -> None:
    grown, cost = growth(), paper_cost()
    names = ("at_least", "aim", "met")
    rows = [
        {"name": f"d={one['d']}, n={one['n']}, t={one['t']}", "here": one["ms"], "unit": "ms", "detail": one["axis"]}
        | dict.fromkeys(names)
        for one in grown
    ]
    rows.append({"name": "the whole paper", "here": cost["total_core_hours"], "unit": "core hours", "detail": ""})
    rows[-1] |= dict.fromkeys(names)
    show("cost of a step, one core", rows)
    store("scale", rows, {"growth": grown, "paper": cost})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
