"""`underhood train --optimizer levenberg`: one seed after the other, each from sequences and outputs alone."""

from __future__ import annotations

import json
import math
from typing import Any

from underhood.commands.output import announce
from underhood.commands.train_plan import Plan
from underhood.core.costs import estimate_cost
from underhood.core.errors import UnderhoodError
from underhood.core.folders import Folder
from underhood.core.interrupts import interruptible
from underhood.core.progress import Progress
from underhood.training.folder import RunFolder
from underhood.training.tasks.task import AbstractTask

ITERATIONS = 200  # of each start, unless --steps is given

_ROW = {"held_out_loss", "steps", "seconds", "hidden", "pre_readout", "seed"}


def train_levenberg(plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    """The rows of the result, and whether Ctrl-C ended the run.

    A seed that is done stays done; --resume goes on with the first that is not. A seed takes seconds and is a function
    of the flags alone, so that one that was killed starts again.
    """
    from underhood.training.second_order.levenberg import starting_sizes
    from underhood.training.second_order.on_task import require_second_order

    task = plan.make_task()
    require_second_order(task)
    starting_sizes(task.d, plan.hidden, plan.pre_readout)  # refuses sizes before the folder is made
    seeds = "1 seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    announce(estimate_cost("levenberg", task.d, f"training d = {task.d}, {seeds}", plan.seeds))
    folder, rows = RunFolder(plan.out), []
    with folder.locked():
        folder.open(_settings(plan, task), resume=plan.resume, command=plan.command)
        try:
            with interruptible():
                for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
                    rows.append(_done(folder.files, seed) or _one_seed(plan, task, folder, seed))
        except KeyboardInterrupt:
            return rows, True
    return rows, False


def _one_seed(plan: Plan, task: AbstractTask, folder: RunFolder, seed: int) -> dict[str, Any]:
    with Progress(f"seed {seed}", None) as progress:
        return _fitted(plan, task, folder, seed, progress)


def _fitted(plan: Plan, task: AbstractTask, folder: RunFolder, seed: int, progress: Progress) -> dict[str, Any]:
    from underhood.core.files import model_bytes
    from underhood.training.second_order.on_task import fit_task

    def show(iteration: int, loss: float, damping: float, restart: int) -> bool:
        progress.update(iteration, f"start {restart} · iteration {iteration} · loss {loss:.3e}")
        return False

    found = fit_task(
        task,
        seed,
        lambdas=plan.lambdas,
        hidden=plan.hidden,
        pre_readout=plan.pre_readout,
        target_loss=plan.target_loss,
        max_seconds=math.inf if plan.max_seconds is None else plan.max_seconds,
        max_iterations=ITERATIONS if plan.steps is None else plan.steps,
        max_total_iterations=plan.steps,
        callback=show,
    )
    content = model_bytes(found.model, provenance=_settings(plan, task) | {"seed": seed})
    path = folder.files.write(f"model-seed-{seed}.safetensors", content)
    row = {
        "held_out_loss": found.held_out_loss,
        "steps": found.iterations,
        "seconds": found.seconds,
        "hidden": found.hidden,
        "pre_readout": found.pre_readout,
        "seed": seed,
        "restarts": found.restarts,
        "met": found.met,
        "file": str(path),
    }
    for restart, iteration, loss, damping in found.history:
        line = {"step": iteration, "seed": seed, "member": seed - plan.first_seed, "restart": restart}
        folder.log.write({**line, "loss": float(loss), "damping": float(damping)})
    folder.files.write(_result(seed), json.dumps(row).encode())
    progress.update(found.iterations, f"held-out loss {found.held_out_loss:.3g} after {found.seconds:.1f} s", now=True)
    return row


def _done(files: Folder, seed: int) -> dict[str, Any] | None:
    """The row of a seed that has ended, checked: a person may have been at the file."""
    path = files.path / _result(seed)
    if not files.has(path.name):
        return None
    try:
        row = json.loads(files.read(path.name))
        if not isinstance(row, dict) or row.get("seed") != seed or not row.keys() >= _ROW:
            raise ValueError("it has other keys")
    except (ValueError, RecursionError) as error:
        remedy = "Remove it to run the seed again."
        raise UnderhoodError(f"{path} is not the result of seed {seed}: {error}", remedy=remedy) from None
    return row


def _result(seed: int) -> str:
    return f"result-seed-{seed}.json"


def _settings(plan: Plan, task: AbstractTask) -> dict[str, Any]:
    return {
        "format": "underhood-run/1",
        **task.settings(),
        "optimizer": "levenberg",
        "lambdas": plan.lambdas,
        "hidden": plan.hidden,
        "pre_readout": plan.pre_readout,
        "max_iterations": plan.steps,
        "target_loss": plan.target_loss,
        "first_seed": plan.first_seed,
    }
