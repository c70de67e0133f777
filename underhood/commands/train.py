"""`underhood train`: networks on a task, by AdamW as in the paper or by a second-order solver."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from underhood.commands.output import DONE, note, print_json
from underhood.commands.train_flags import TrainFlags
from underhood.core.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from underhood.commands.train_plan import Plan


@dataclasses.dataclass(frozen=True)
class Train(TrainFlags):
    """Train one network for each seed; a run folder holds settings, metrics, checkpoints and the results."""

    def run(self) -> int:
        from underhood.commands.train_plan import settled

        if self.list:
            return _print_names(self.json)
        plan = settled(self)
        runs, interrupted = _trained(plan)
        payload = {"task": plan.task, "model": plan.model, "optimizer": plan.optimizer, "out": str(plan.out)}
        payload |= {"interrupted": interrupted, "runs": runs}
        print_json(payload) if self.json else _print_runs(payload)
        if interrupted:
            note(f"interrupted; go on with: underhood train --out {plan.out} --resume")
        return INTERRUPTED if interrupted else DONE


def _trained(plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    if plan.optimizer == "levenberg":
        from underhood.commands.train_levenberg import train_levenberg

        return train_levenberg(plan)
    from underhood.commands.train_adamw import train_adamw

    return train_adamw(plan)


def _print_names(as_json: bool) -> int:
    """Out of the registries, which know what other packages add."""
    from underhood.commands.rows import print_rows
    from underhood.core.model import ARCHITECTURES
    from underhood.training.tasks.make import task_settings
    from underhood.training.tasks.task import TASKS

    tasks = {name: _plain(task_settings(name)) for name in TASKS}
    if as_json:
        print_json({"tasks": tasks, "models": [*ARCHITECTURES]})
        return DONE
    rows = [{"task": name, "settings": " ".join(f"{k}={v}" for k, v in kept.items())} for name, kept in tasks.items()]
    print_rows("tasks", rows)
    models = [
        {
            "model": one.name,
            "label": one.label,
            "most layers": one.most_layers or "any",
            "levenberg": "yes" if one.second_order else "no",
        }
        for one in ARCHITECTURES.values()
    ]
    print_rows("models", models)
    return DONE


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, int | float | str) else None for name, value in settings.items()}


def _print_runs(payload: dict[str, Any]) -> None:
    from underhood.commands.rows import print_rows

    names = ("seed", "hidden", "pre_readout", "steps", "seconds", "held_out_loss")
    print_rows(f"{payload['task']}: {payload['out']}", [{name: row[name] for name in names} for row in payload["runs"]])
