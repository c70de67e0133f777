"""`underhood train --optimizer adamw`: seeds, rates and decays side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underhood.commands.output import note
from underhood.commands.train_plan import Plan
from underhood.core.extras import require
from underhood.training.tasks.task import AbstractTask

if TYPE_CHECKING:
    import numpy as np

    from underhood.training.population import Member


def train_adamw(plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    """The rows of the result, and whether Ctrl-C ended the run; nothing is allocated that cannot fit."""
    from underhood.core.threads import offer_two_devices

    offer_two_devices()
    from underhood.core.progress import Progress
    from underhood.training.population import members_of
    from underhood.training.room import require_room, shape_of
    from underhood.training.runs import fit_population

    task, config = plan.make_task(), plan.make_config()
    rates, decays = plan.learning_rate or (), plan.weight_decay or ()
    count = plan.seeds * max(1, len(rates)) * max(1, len(decays))
    require_room(shape_of(lambda: plan.make_model(task, 0)), count, task, config)
    members = members_of(config, range(plan.first_seed, plan.first_seed + plan.seeds), rates, decays)
    models = [plan.make_model(task, member.seed) for member in members]
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress("train", config.steps, "steps"))
        write = stack.enter_context(_event_writer(plan.out, members)) if plan.tensorboard else None

        def watch(step: int, losses: np.ndarray) -> None:
            progress.losses(step, losses)
            if write is not None:
                write(step, losses)

        found = fit_population(
            models,
            members,
            task,
            config,
            out=plan.out,
            resume=plan.resume,
            watch=watch,
            warn=note,
            command=plan.command,
            on_interrupt="return",
        )
    return [_row(run, task) for run in found], any(run.interrupted for run in found)


def _row(run: Any, task: AbstractTask) -> dict[str, Any]:
    row = {
        "held_out_loss": run.held_out_loss,
        "steps": run.steps,
        "seconds": run.seconds,
        "hidden": getattr(run.model, "hidden", None),
        "pre_readout": getattr(run.model, "pre_readout", None),
        "seed": run.seed,
        "learning_rate": run.member.learning_rate,
        "weight_decay": run.member.weight_decay,
        "file": None if run.file is None else str(run.file),
    }
    if task.optimal_loss() is not None:
        row |= {
            "validation_loss": run.validation_loss,
            "optimal_loss": task.optimal_loss(),
            "optimal_validation_loss": task.optimal_loss(validation=True),
        }
    return row


@contextlib.contextmanager
def _event_writer(folder: Path, members: Sequence[Member]) -> Iterator[Callable[[int, np.ndarray], None]]:
    """TensorBoard's event files, a curve for each member."""
    tensorboard = require("tensorboardX", "tensorboard", "--tensorboard")
    writer = tensorboard.SummaryWriter(str(folder / "tensorboard"))

    def write(step: int, losses: np.ndarray) -> None:
        for index, loss in enumerate(losses):
            writer.add_scalar(f"loss/{index}-seed-{members[index].seed}", float(loss), step)

    try:
        yield write
    finally:
        writer.close()
