"""`underhood train --optimizer levenberg`: one seed after the other, each from sequences and outputs alone."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from underhood.commands.output import announce, note
from underhood.commands.train_plan import Plan
from underhood.core.costs import estimate_cost
from underhood.core.errors import UnderhoodError
from underhood.training.tasks.task import AbstractTask

ITERATIONS = 200  # of each start, unless --steps is given

_ROW = {"held_out_loss", "steps", "seconds", "hidden", "pre_readout", "seed"}


def train_levenberg(plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    """The rows of the result, and whether Ctrl-C ended the run.

    A seed that is done stays done; --resume goes on with the first that is not. A seed takes seconds and is a function
    of the flags alone, so that one that was killed starts again.
    """
    from underhood.training.folder import RunFolder
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
            for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
                rows.append(_done(plan.out, seed) or _one_seed(plan, task, folder, seed))
        except KeyboardInterrupt:
            return rows, True
    return rows, False


def _one_seed(plan: Plan, task: AbstractTask, folder: Any, seed: int) -> dict[str, Any]:
    from underhood.core.atomic import write_atomically
    from underhood.core.files import save
    from underhood.training.second_order.on_task import fit_task

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
        callback=lambda iteration, loss, damping, restart: _show(seed, iteration, loss, restart),
    )
    path = save(found.model, _model(plan.out, seed), provenance=_settings(plan, task) | {"seed": seed})
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
    write_atomically(_result(plan.out, seed), json.dumps(row).encode())
    note(f"seed {seed}: held-out loss {found.held_out_loss:.3g} after {found.seconds:.1f} s")
    return row


def _show(seed: int, iteration: int, loss: float, restart: int) -> bool:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rseed {seed} · start {restart} · iteration {iteration} · loss {loss:.3e}   ")
    return False


def _done(out: Path, seed: int) -> dict[str, Any] | None:
    """The row of a seed that has ended, checked: a person may have been at the file."""
    from underhood.core.atomic import read_bytes

    path = _result(out, seed)
    if not path.exists():
        return None
    try:
        row = json.loads(read_bytes(path))
        if not isinstance(row, dict) or row.get("seed") != seed or not row.keys() >= _ROW:
            raise ValueError("it has other keys")
    except (ValueError, RecursionError) as error:
        remedy = "Remove it to run the seed again."
        raise UnderhoodError(f"{path} is not the result of seed {seed}: {error}", remedy=remedy) from None
    return row


def _model(out: Path, seed: int) -> Path:
    return out / f"model-seed-{seed}.safetensors"


def _result(out: Path, seed: int) -> Path:
    return out / f"result-seed-{seed}.json"


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
