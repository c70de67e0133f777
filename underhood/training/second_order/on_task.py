"""Levenberg–Marquardt on a task: its own stream of sequences, of a number that the task asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from underhood.architectures.gated_rnn.cell import GatedRNN
from underhood.core.errors import UnderhoodError
from underhood.core.memory import require_memory
from underhood.training.second_order.levenberg import LevenbergResult, fit_levenberg
from underhood.training.second_order.problems import outputs_of
from underhood.training.tasks.task import HELD_OUT, TRAINING, AbstractTask, SecondOrder, draw


def fit_task(task: AbstractTask, seed: int, *, lambdas: str = "fixed", **options: Any) -> LevenbergResult:
    """`fit_levenberg` on sequences of `task`; `options` are its own."""
    chosen = require_second_order(task)
    return fit_levenberg(
        *draw(task, seed, chosen.sequences, stream=TRAINING),
        held_out=draw(task, seed, chosen.tests, stream=HELD_OUT),
        seed=seed,
        lambdas=lambdas,
        targets_at="last" if task.last_only else "every",
        symmetry=task.symmetry() if lambdas == "fixed" else None,
        **options,
    )


def require_second_order(task: AbstractTask) -> SecondOrder:
    """The task's settings for the solver; refused where it has none, or where its sequences do not fit."""
    chosen = task.second_order
    if chosen is None:
        raise UnderhoodError(f"levenberg does not train on the task {task.name}", remedy="Use the optimizer adamw.")
    numbers = (chosen.sequences + chosen.tests) * task.steps * (task.d + task.d_out)
    what = f"{chosen.sequences} sequences of {task.steps} steps with {task.d} inputs and {task.d_out} outputs"
    require_memory(2 * 8 * numbers, what)  # as they are drawn, and as they are worked on
    # Products of two inputs, or of an input and 1, of the past and of the present (second_order/moments.py).
    rows, products = min(chosen.sequences, 64) * (1 if task.last_only else task.steps), (task.d + 1) * (task.d + 2)
    require_memory(8 * products * max(rows, products), f"{products} products of {task.d} inputs")
    return chosen


def held_out_loss(task: AbstractTask, seed: int, model: GatedRNN) -> float:
    """½ mean square of a network on the sequences that `fit_task` tests with."""
    xs, ys = draw(task, seed, require_second_order(task).tests, stream=HELD_OUT)
    return 0.5 * float(np.mean((outputs_of(model, xs, last=task.last_only) - ys) ** 2))
