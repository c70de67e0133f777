"""What the weight decay does, whose exponent the paper lost: the same steps with several; results/bench/decays.json.

python -m benchmarks.decays [--steps 20000]

Section 3.1's student (d = 4, 100 hidden neurons) at each decay, side by side: its loss, how many hidden and pre-readout
neurons still contribute to the output, and how far its polynomial is from the teacher's.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

import numpy as np

from benchmarks.measure import row, show, store

DECAYS = (1e-4, 1e-2, 1e-1)
CONTRIBUTES = 1e-3  # of the output


def students(steps: int) -> list[dict[str, Any]]:
    import underhood as uh
    from underhood.core.model import as_dtype
    from underhood.decompiler.decompile import decompile
    from underhood.training.config import SECTION_3_1, SECTION_3_1_HIDDEN
    from underhood.training.population import members_of
    from underhood.training.runs import fit_population
    from underhood.training.tasks.teacher_student import TeacherStudent

    teacher = uh.random_attention(4, seed=0)
    config = dataclasses.replace(SECTION_3_1, steps=steps, l2=0.0, log_every=100)
    members = members_of(config, [0], weight_decays=DECAYS)
    models = [uh.make_model("gated-rnn", 4, hidden=SECTION_3_1_HIDDEN, seed=0) for _ in members]
    found = []
    for run in fit_population(models, members, TeacherStudent(teacher), config):
        reading = decompile(as_dtype(run.model, np.float64), against=teacher)
        neurons = reading.evidence.neurons
        assert neurons is not None  # a gated RNN has them
        found.append(
            {
                "weight_decay": run.member.weight_decay,
                "held_out_loss": run.held_out_loss,
                "hidden": int(np.sum(neurons.contribution > CONTRIBUTES)),
                "pre_readout": int(np.sum(neurons.row_contribution > CONTRIBUTES)),
                "polynomial_distance": reading.scores.polynomial_distance,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    flags = parser.parse_args()
    found = students(flags.steps)
    rows = []
    for one in found:
        left = f"{one['hidden']} hidden and {one['pre_readout']} pre-readout neurons contribute"
        detail = f"{left}; polynomial distance {one['polynomial_distance']:.2g}"
        rows.append(row(f"decay {one['weight_decay']:g}: held-out loss", one["held_out_loss"], detail=detail))
    show(f"weight decay, {flags.steps} steps", rows)
    store("decays", rows, {"steps": flags.steps, "students": found})


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    main()
