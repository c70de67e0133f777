"""How the cost of a training step grows, and what the whole paper costs; results/bench/scale.json.

python -m benchmarks.scale

Steps are timed on one core. The paper's cost is the sum over its runs (`sweep_of("paper")`, and the two long runs of
Sections 3.1 and 4.2) of steps times the measured time of a step of that shape.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.measure import show, store
from benchmarks.training import STEPS, engine

ROUNDS = 3
CORES = (2, 100)


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
    from underhood.data import TeacherStudent

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


def paper_cost() -> dict[str, Any]:
    """Core hours of every run of the paper, from one measured step of each shape."""
    from underhood.fit.config import SECTION_3_1, SECTION_4_2
    from underhood.report.sweeps import sweep_of

    seconds: dict[tuple[Any, ...], float] = {}
    jobs: list[float] = []
    second_order = 0
    for run in sweep_of("paper").expanded():
        if run.optimizer == "levenberg":
            second_order += 1
            continue
        shape = (run.task, run.model, run.hidden, run.layers)
        if shape not in seconds:
            seconds[shape] = step_seconds(run.model, run.make_task(), run.hidden, run.layers)
        jobs.append(run.steps * seconds[shape])
    figures = sum(jobs)
    student = SECTION_3_1.steps * seconds["teacher-student", "gated-rnn", 96, 1]
    regression = 4 * SECTION_4_2.steps * seconds["linear-regression", "gated-rnn", 80, 1]
    total = figures + student + regression
    # A run stays on one core, so that more cores than runs do not help, and the longest run bounds them all.
    hours = {f"{cores} cores": max(total / cores, max(jobs)) / 3600 for cores in CORES}
    steps = [
        {"task": task, "model": model, "hidden": hidden, "layers": layers, "ms": 1e3 * value}
        for (task, model, hidden, layers), value in seconds.items()
    ]
    return {
        "runs": len(jobs) + 5,
        "second_order_runs": second_order,
        "core_hours": {"table1": student / 3600, "table2": regression / 3600, "figures": figures / 3600},
        "total_core_hours": total / 3600,
        "longest_run_hours": max(jobs) / 3600,
        "hours": hours,
        "steps": steps,
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
