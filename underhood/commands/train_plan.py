"""What `underhood train` is to do: the flags given, then those of the run that is resumed, then the usual ones."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from underhood.attention.linear import LinearAttention, require_attention
from underhood.commands.train_flags import USUAL, TrainFlags
from underhood.core.errors import UnderhoodError
from underhood.core.files import load
from underhood.core.model import AbstractModel, make_model
from underhood.training.config import PRESETS, FitConfig
from underhood.training.folder import COMMAND, RunFolder, differences, listed
from underhood.training.specification import ONLY, TASK_FIELDS, require_trainable
from underhood.training.tasks.make import make_task
from underhood.training.tasks.task import AbstractTask

# Flags of one optimiser only, beside the settings that are so: with the other they would be taken and ignored.
FLAGS_OF = {
    "adamw": (*ONLY["adamw"], "preset", "log_every", "checkpoint_every"),
    "levenberg": ("lambdas", "target_loss", "max_seconds"),
}
# How a command is carried out, not what it asks for.
EXECUTION_FLAGS = ("out", "resume", "list", "tensorboard", "json")


@dataclasses.dataclass(frozen=True)
class Plan(TrainFlags):
    """The flags with every choice made."""

    out: Path = Path()
    task: str = USUAL["task"]
    model: str = USUAL["model"]
    layers: int = USUAL["layers"]
    seeds: int = USUAL["seeds"]
    first_seed: int = USUAL["first_seed"]
    optimizer: Literal["adamw", "levenberg"] = USUAL["optimizer"]
    lambdas: Literal["fixed", "free"] = USUAL["lambdas"]
    target_loss: float = USUAL["target_loss"]
    recorded_teacher: LinearAttention | None = None
    """That of the run that is resumed, out of its record: the file that it came from need not be there any more."""

    @property
    def command(self) -> dict[str, Any]:
        """What run.json keeps of the flags, for --resume."""
        other = {name for optimizer, names in FLAGS_OF.items() if optimizer != self.optimizer for name in names}
        kept = {name: value for name, value in _given(self).items() if name not in other}
        return {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}

    def make_task(self) -> AbstractTask:
        """The task with the settings given; one that it does not have is refused."""
        given = {name: getattr(self, name) for name in TASK_FIELDS if getattr(self, name) is not None}
        for name, value in map(_assignment, self.set or ()):
            if name in given:
                raise UnderhoodError(f"{name} is given twice", remedy=f"Leave out --set {name}=….")
            given[name] = value
        if self.teacher is not None or self.recorded_teacher is not None:
            for name in given.keys() & {"d", "teacher_seed"}:
                raise UnderhoodError(f"{name} belongs to a random teacher", remedy="Leave it out, or --teacher.")
            given["teacher"] = self.recorded_teacher or require_attention(load(str(self.teacher)))
        return make_task(self.task, **given)

    def make_config(self) -> FitConfig:
        """The preset, or the defaults, with what was given in their place."""
        if self.preset is not None and self.preset not in PRESETS:
            raise UnderhoodError(f"unknown preset {self.preset!r}", remedy=f"Known: {', '.join(PRESETS)}.")
        given = {
            "steps": self.steps,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate[0] if self.learning_rate else None,
            "weight_decay": self.weight_decay[0] if self.weight_decay else None,
            "l2": self.l2,
            "anneal_l2": self.anneal_l2 or None,
            "seed": self.first_seed,
            "log_every": self.log_every,
            "checkpoint_every": self.checkpoint_every,
        }
        base = PRESETS[self.preset] if self.preset else FitConfig()
        return dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})

    def make_model(self, task: AbstractTask, seed: int) -> AbstractModel:
        """A network with random weights."""
        sizes = {"hidden": task.width if self.hidden is None else self.hidden, "pre_readout": self.pre_readout}
        return make_model(self.model, task.d, d_out=task.d_out, layers=self.layers, seed=seed, **sizes)


def settled(flags: TrainFlags) -> Plan:
    """Every choice made and checked; a resumed run takes what is not given from its folder."""
    if flags.out is None:
        raise UnderhoodError("train needs a run folder", remedy="Use --out runs/x.")
    given, recorded = _given(flags), RunFolder(flags.out).recorded if flags.resume else {}
    teacher = None
    if COMMAND in recorded:
        before = _revived(recorded[COMMAND])
        if "teacher" in before and "teacher" not in given:
            del before["teacher"]  # a path in a record may lead anywhere; the weights are in the record
            teacher = _teacher_in(recorded)
        given = _continued(flags.out, given, before)
    execution = {name: getattr(flags, name) for name in EXECUTION_FLAGS}
    plan = Plan(**{**given, **execution}, recorded_teacher=teacher)
    _check(plan, given)
    return plan


def _continued(out: Path, given: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The flags of a run that is resumed, where they agree; what is new to it is compared with run.json."""
    both = {name: value for name, value in given.items() if name in before}
    if RunFolder(out).has_ended and given.get("optimizer", before.get("optimizer")) != "levenberg":
        both.pop("steps", None)  # a run that has ended may go on for more
    different = differences({name: before[name] for name in both}, both)
    if different and RunFolder(out).has_begun:
        remedy = "Use --resume without other flags, or another --out."
        raise UnderhoodError(f"the run in {out} has other settings: {listed(different)}", remedy=remedy)
    return {**before, **given}


def _teacher_in(recorded: dict[str, Any]) -> LinearAttention:
    try:
        weights = {name: weight for name, weight in recorded["teacher"].items() if weight is not None}
        return LinearAttention(**{name: np.array(weight, np.float64) for name, weight in weights.items()})
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        what = f"run.json does not hold the teacher of its run: {type(error).__name__}"
        raise UnderhoodError(what, remedy="Name it again: --teacher FILE.") from None


def _given(flags: TrainFlags) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(TrainFlags) if field.name not in EXECUTION_FLAGS)
    values = {name: getattr(flags, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _assignment(text: str) -> tuple[str, Any]:
    """`size=3`; what is no JSON is a string."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UnderhoodError("expected a setting as name=value", text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _revived(command: Any) -> dict[str, Any]:
    """Flags out of run.json, where tuples are lists and paths are strings."""
    names = {field.name for field in dataclasses.fields(TrainFlags)} - set(EXECUTION_FLAGS)
    if not isinstance(command, dict) or not command.keys() <= names:
        raise UnderhoodError("run.json has flags that train does not know", remedy="Start again in another folder.")
    flags = {name: tuple(value) if isinstance(value, list) else value for name, value in command.items()}
    return flags | ({"teacher": Path(str(flags["teacher"]))} if "teacher" in flags else {})


def _check(plan: Plan, given: dict[str, Any]) -> None:
    for other in {"adamw", "levenberg"} - {plan.optimizer}:
        for name in FLAGS_OF[other]:
            if name in given:
                flag = f"--{name.replace('_', '-')}"
                raise UnderhoodError(f"{flag} belongs to --optimizer {other}", remedy="Leave it out.")
    for name in ("learning_rate", "weight_decay", "set"):
        if getattr(plan, name) == ():
            flag = f"--{name.replace('_', '-')}"
            raise UnderhoodError(f"{flag} has no value", remedy="Give one or more, or leave it out.")
    for name in ("seeds", "hidden", "layers", "pre_readout", "steps"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            raise UnderhoodError(f"expected {name} of 1 or more", value)
    if plan.first_seed < 0 or plan.first_seed + plan.seeds > 2**31:
        raise UnderhoodError("expected seeds from 0 to 2³¹ − 1", f"{plan.seeds} from {plan.first_seed} on")
    if plan.max_seconds is not None and not plan.max_seconds > 0:
        raise UnderhoodError("expected --max-seconds above 0", plan.max_seconds)
    if not 0 <= plan.target_loss < math.inf:
        raise UnderhoodError("expected --target-loss of 0 or more", plan.target_loss)
    require_trainable(plan.model, plan.layers, plan.optimizer)
    if plan.optimizer == "levenberg" and plan.tensorboard:
        raise UnderhoodError("--tensorboard belongs to --optimizer adamw", remedy="Leave it out.")
