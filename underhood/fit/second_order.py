"""Levenberg–Marquardt on a task: its own stream of sequences, of a number that its noise asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.cells.gated_rnn import GatedRNN
from underhood.data.task import HELD_OUT, TRAINING, AbstractTask, draw
from underhood.fit.levenberg import LevenbergResult, fit_levenberg
from underhood.fit.problems import outputs_of
from underhood.fit.symmetry import Signs, regression_signs

SEQUENCES = {"teacher-student": 640, "linear-regression": 200_000}  # the second has noise, which more tasks average
TESTS = {"teacher-student": 256, "linear-regression": 20_000}


def fit_task(task: AbstractTask, seed: int, *, lambdas: str = "fixed", **options: Any) -> LevenbergResult:
    """`fit_levenberg` on sequences of `task`; `options` are its own."""
    return fit_levenberg(
        *draw(task, seed, SEQUENCES[task.name], stream=TRAINING),
        held_out=draw(task, seed, TESTS[task.name], stream=HELD_OUT),
        seed=seed,
        lambdas=lambdas,
        targets_at="last" if task.last_only else "every",
        symmetry=_symmetry(task, lambdas),
        **options,
    )


def held_out_loss(task: AbstractTask, seed: int, model: GatedRNN) -> float:
    """½ mean square of a network on the sequences that `fit_task` tests with."""
    xs, ys = draw(task, seed, TESTS[task.name], stream=HELD_OUT)
    return 0.5 * float(np.mean((outputs_of(model, xs, last=task.last_only) - ys) ** 2))


def _symmetry(task: Any, lambdas: str) -> Signs | None:
    """Sign changes to average over; they bring the noise of finitely many tasks below a thousandth of the loss."""
    if task.name != "linear-regression" or lambdas != "fixed":
        return None
    return regression_signs(task.d_x, task.d_y)
