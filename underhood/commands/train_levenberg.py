"""`underhood train --optimizer levenberg`: one seed after the other, each from sequences and outputs alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underhood.commands.output import note
from underhood.errors import UnderhoodError

if TYPE_CHECKING:
    from underhood.commands.train import Train


_ROW = {"held_out_loss", "steps", "seconds", "hidden", "pre_readout", "seed"}


def train_levenberg(flags: Train, task: Any) -> list[dict[str, Any]]:
    """The rows of the result. A seed that is done stays done; --resume goes on with the first that is not.

    A seed takes seconds and is a function of the flags alone, so that one that was killed starts again.
    """
    from underhood.fit.folder import RunFolder

    if flags.model != "gated-rnn":
        raise UnderhoodError("levenberg trains a gated-rnn", f"--model {flags.model}", "Use --optimizer adamw.")
    folder = RunFolder(flags.out)
    with folder.locked():
        folder.open(_settings(flags, task), resume=flags.resume)
        seeds = range(flags.first_seed, flags.first_seed + flags.seeds)
        return [_done(flags.out, seed) or _one_seed(flags, task, folder, seed) for seed in seeds]


def _one_seed(flags: Train, task: Any, folder: Any, seed: int) -> dict[str, Any]:
    from underhood.fit.second_order import fit_task
    from underhood.storage.atomic import write_atomically
    from underhood.storage.files import save

    found = fit_task(
        task,
        seed,
        lambdas=flags.lambdas,
        hidden=flags.hidden,
        pre_readout=flags.pre_readout,
        target_loss=flags.target_loss,
        max_seconds=flags.max_seconds or math.inf,
        max_iterations=flags.steps or 200,
        callback=lambda iteration, loss, damping, restart: _show(seed, iteration, loss, restart),
    )
    path = save(found.model, _model(flags.out, seed), provenance=_settings(flags, task) | {"seed": seed})
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
        line = {"step": iteration, "seed": seed, "member": seed - flags.first_seed, "restart": restart}
        folder.log.write({**line, "loss": float(loss), "damping": float(damping)})
    write_atomically(_result(flags.out, seed), json.dumps(row).encode())
    note(f"seed {seed}: held-out loss {found.held_out_loss:.3g} after {found.seconds:.1f} s")
    return row


def _show(seed: int, iteration: int, loss: float, restart: int) -> bool:
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\rseed {seed} · start {restart} · iteration {iteration} · loss {loss:.3e}   ")
    return False


def _done(out: Path, seed: int) -> dict[str, Any] | None:
    """The row of a seed that has ended, checked: a person may have been at the file."""
    from underhood.storage.atomic import read_bytes

    path = _result(out, seed)
    if not path.exists():
        return None
    try:
        row = json.loads(read_bytes(path))
        if not isinstance(row, dict) or row.get("seed") != seed or not row.keys() >= _ROW:
            raise ValueError("not the row of this seed")
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is the result of seed {seed}", error, "Take it away to run it again.") from None
    return row


def _model(out: Path, seed: int) -> Path:
    return out / f"model-seed-{seed}.safetensors"


def _result(out: Path, seed: int) -> Path:
    return out / f"result-seed-{seed}.json"


def _settings(flags: Train, task: Any) -> dict[str, Any]:
    return {
        "format": "underhood-run/1",
        **task.settings(),
        "optimizer": "levenberg",
        "lambdas": flags.lambdas,
        "hidden": flags.hidden,
        "pre_readout": flags.pre_readout,
        "max_iterations": flags.steps,
        "target_loss": flags.target_loss,
        "first_seed": flags.first_seed,
    }
