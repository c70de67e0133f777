"""Which weight decay empties neurons? Its exponent is lost in the paper; results/bench/decays.json.

python -m benchmarks.decays [--steps 40000]

Section 3.1's student (d = 4, 100 hidden neurons) with decoupled decays and with L2 penalties: its loss, how
many hidden and pre-readout neurons still contribute to the output, and how far its polynomial is from the teacher's.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

import numpy as np

from benchmarks.measure import row, show, store

CASES: dict[str, dict[str, Any]] = {
    "decay 0.0001": {"weight_decay": 1e-4},
    "decay 0.1": {"weight_decay": 1e-1},
    "decay 1": {"weight_decay": 1.0},
    "L2 penalty 1e-5": {"l2": 1e-5},
    "L2 penalty 5e-4, annealed": {"l2": 5e-4, "anneal_l2": True},
}


def student(steps: int, **settings: Any) -> dict[str, Any]:
    import underhood as uh
    from underhood.data import TeacherStudent
    from underhood.fit.config import SECTION_3_1, SECTION_3_1_HIDDEN
    from underhood.model import as_dtype
    from underhood.report.teacher import CONTRIBUTES

    teacher = uh.random_attention(4, seed=0)
    config = dataclasses.replace(SECTION_3_1, **{"weight_decay": 0.0, "l2": 0.0, "anneal_l2": False, **settings})
    model = uh.make_model("gated-rnn", 4, hidden=SECTION_3_1_HIDDEN, seed=0)
    run = uh.fit(model, TeacherStudent(teacher), dataclasses.replace(config, steps=steps))
    found = uh.decompile(as_dtype(run.model, np.float64), against=teacher)
    neurons = found.evidence.neurons
    assert neurons is not None  # a gated RNN has them
    return {
        **settings,
        "held_out_loss": run.held_out_loss,
        "hidden": int(np.sum(neurons.contribution > CONTRIBUTES)),
        "pre_readout": int(np.sum(neurons.row_contribution > CONTRIBUTES)),
        "polynomial_distance": found.scores.polynomial_distance,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000)
    flags = parser.parse_args()
    found = [{"name": name, **student(flags.steps, **settings)} for name, settings in CASES.items()]
    rows = []
    for one in found:
        left = f"{one['hidden']} hidden and {one['pre_readout']} pre-readout neurons contribute"
        detail = f"{left}; polynomial distance {one['polynomial_distance']:.2g}"
        rows.append(row(f"{one['name']}: held-out loss", one["held_out_loss"], detail=detail))
    show(f"weight decay, {flags.steps} steps", rows)
    store("decays", rows, {"steps": flags.steps, "students": found})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
