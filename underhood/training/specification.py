"""One run: all that decides its numbers, for `underhood train`, for sweeps and for the studies.

What a setting is called, its type, its range and what goes with what are written here.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt

from underhood.core.errors import UnderhoodError
from underhood.core.model import ARCHITECTURES, AbstractModel, make_model
from underhood.training.config import LARGEST_RATE, FitConfig
from underhood.training.tasks.make import make_task, task_settings
from underhood.training.tasks.task import AbstractTask

Positive = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]

# Settings of the paper's tasks, which are fields; what a task of your own has beyond them goes into `settings`.
TASK_FIELDS = ("d", "length", "teacher_seed", "examples", "d_x", "d_y")
# Settings of one optimiser only: with the other they would be taken and ignored.
ONLY = {
    "adamw": ("batch_size", "learning_rate", "weight_decay", "l2", "anneal_l2"),
    "levenberg": ("restarts",),
}
# Fields that came later: while they have their default, a run keeps the name that it had without them.
LATER = ("l2", "anneal_l2", "settings")


class RunSpec(BaseModel):
    """One run: all that decides its numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str
    model: str = "gated-rnn"
    hidden: Positive
    layers: Positive = 1
    pre_readout: Positive | None = None
    seed: Seed = 0
    learning_rate: Rate = FitConfig.learning_rate
    weight_decay: Decay = FitConfig.weight_decay
    l2: Decay = FitConfig.l2
    anneal_l2: bool = FitConfig.anneal_l2
    optimizer: Literal["adamw", "levenberg"] = "adamw"
    steps: Positive = FitConfig.steps
    batch_size: Positive = FitConfig.batch_size
    restarts: NonNegativeInt = 2
    d: Positive = 4
    length: Positive = 32
    teacher_seed: NonNegativeInt = 0
    examples: Positive = 12
    d_x: Positive = 3
    d_y: Positive = 3
    probe: bool = False
    settings: dict[str, JsonValue] = {}

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, from which the run can be made again."""
        default = {name: RunSpec.model_fields[name].default for name in LATER}
        return {name: value for name, value in self.model_dump().items() if value != default.get(name, ...)}

    @property
    def id(self) -> str:
        """A name that follows from the settings: the same run has the same name everywhere."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def shape(self) -> str:
        """Runs of one shape train together in one program."""
        alike = self.model_dump(exclude={"seed", "learning_rate", "weight_decay"})
        return json.dumps({**alike, "alone": self.seed if self.optimizer == "levenberg" else None})

    def make_task(self) -> AbstractTask:
        """The task with those of its settings that the run has."""
        return _made(self.task, json.dumps(self._task_settings(), sort_keys=True))

    def make_model(self, task: AbstractTask) -> AbstractModel:
        """The network at the start."""
        sizes = {"hidden": self.hidden, "layers": self.layers, "d_out": task.d_out, "pre_readout": self.pre_readout}
        return make_model(self.model, task.d, seed=self.seed, **sizes)

    def make_config(self, checkpoint_every: int) -> FitConfig:
        """How it is trained, but for its rates, which are a member's: of the config's own only the ratio counts."""
        every = min(checkpoint_every, self.steps)
        return FitConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            checkpoint_every=every,
            l2=self.l2,
            anneal_l2=self.anneal_l2,
        )

    def _task_settings(self) -> dict[str, Any]:
        known = task_settings(self.task)
        return {**{name: getattr(self, name) for name in TASK_FIELDS if name in known}, **self.settings}


@functools.lru_cache(maxsize=64)
def _made(task: str, settings: str) -> AbstractTask:
    return make_task(task, **json.loads(settings))


def require_trainable(model: str, layers: int, optimizer: str, task: AbstractTask | None = None) -> None:
    """Refuse combinations that do not exist.

    **Arguments:**

    - `model`: an architecture of the registry.
    - `layers`: how many of them.
    - `optimizer`: adamw or levenberg.
    - `task`: what to train on, where that is known.
    """
    chosen, remedy = ARCHITECTURES[model], "Use `optimizer=adamw`."
    if optimizer == "levenberg" and not chosen.second_order:
        raise UnderhoodError(f"levenberg does not train {model}", remedy=remedy)
    if optimizer == "levenberg" and layers > 1:
        raise UnderhoodError("expected one layer for levenberg", layers, "Leave out `layers`.")
    if optimizer == "levenberg" and task is not None and task.second_order is None:
        raise UnderhoodError(f"levenberg does not train on {task.name}", remedy=remedy)
    if chosen.most_layers is not None and layers > chosen.most_layers:
        raise UnderhoodError(f"expected layers of at most {chosen.most_layers} for {model}", layers)


def check(run: RunSpec) -> None:
    """Refuse what the types of its settings cannot tell: unknown names, and combinations that do not exist.

    **Arguments:**

    - `run`: a run whose settings have the right types.
    """
    task = run.make_task()
    require_trainable(run.model, run.layers, run.optimizer, task)
    if run.pre_readout is not None and "pre_readout" not in ARCHITECTURES[run.model].sizes:
        raise UnderhoodError(f"{run.model} has no pre_readout to choose", remedy="Leave it out.")
    for name in run.settings.keys() & set(TASK_FIELDS):
        raise UnderhoodError(f"{name} is a field of its own", remedy="Write it beside settings, not into it.")
    if run.optimizer == "levenberg" and run.hidden < 2:
        raise UnderhoodError("expected 2 hidden neurons or more for levenberg", run.hidden)


def run_of(record: dict[str, Any]) -> RunSpec:
    """The run of a record; refused where its name, a hash of its settings, is not that of the settings in it.

    **Arguments:**

    - `record`: a line of a file.

    **Returns:**

    The run, with all its settings.
    """
    try:
        run = RunSpec(**{name: value for name, value in record.items() if name in RunSpec.model_fields})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        what = f"expected the settings of a run: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UnderhoodError(what) from None
    if record.get("id") != run.id:
        raise UnderhoodError(
            f"expected the name {run.id}, which follows from the settings", repr(record.get("id"))[:60]
        )
    return run
