"""A sweep as the user writes it: entries with the flags of `underhood train`, each one value or a list of them.

    {"name": "widths",
     "runs": [{"task": "teacher-student", "d": 6, "model": "gated-rnn", "hidden": [16, 32, 64], "seeds": 3,
               "steps": 20000}]}

An entry is every combination of its lists. All of it is checked before anything starts.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, NonNegativeInt, PositiveInt

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError
from underhood.core.model import ARCHITECTURES
from underhood.training.config import LARGEST_RATE, FitConfig
from underhood.training.tasks.make import make_task, task_settings
from underhood.training.tasks.task import AbstractTask

MOST_RUNS = 1_000_000
MOST_BYTES = 64 * 2**20

Positive = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]

# Fields that are settings of the paper's tasks; what a task of your own has beyond them goes into `settings`.
TASK_FIELDS = ("d", "length", "teacher_seed", "examples", "d_x", "d_y")
# Fields that came later: while they have their default, a run keeps the name that it had without them.
LATER = ("l2", "settings")


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

    def _task_settings(self) -> dict[str, Any]:
        known = task_settings(self.task)
        return {**{name: getattr(self, name) for name in TASK_FIELDS if name in known}, **self.settings}


@functools.lru_cache(maxsize=64)
def _made(task: str, settings: str) -> AbstractTask:
    return make_task(task, **json.loads(settings))


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _seeds(value: Any) -> Any:
    """`3` is seeds 0, 1 and 2, as with `underhood train --seeds 3`; a list names them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_RUNS:
            raise ValueError(f"expected 1 to {MOST_RUNS} seeds")
        return list(range(value))
    return value


class _Grid(BaseModel):
    """Lists of values, a field for each of `RunSpec`'s."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def count(self) -> int:
        return math.prod(len(value) for value in vars(self).values() if value is not None)

    def runs(self) -> Iterator[RunSpec]:
        """Every combination; a setting that is not given has its task's default."""
        lists = {("seed" if name == "seeds" else name): value for name, value in vars(self).items() if value}
        for values in itertools.product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            usual = {name: value for name, value in task_settings(chosen["task"]).items() if isinstance(value, int)}
            yield RunSpec(**{**{name: usual[name] for name in TASK_FIELDS if name in usual}, **chosen})


def _entry() -> Any:
    """`RunSpec` with a list for each field, `seeds` for `seed`, and none where the task has a default of its own."""
    fields: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(RunSpec, include_extras=True).items():
        if name not in RunSpec.model_fields:
            continue
        field, several = RunSpec.model_fields[name], Field(min_length=1)
        kinds: Any = Annotated[list[kind], BeforeValidator(_seeds if name == "seed" else _listed), several]
        if name in TASK_FIELDS:
            fields[name] = (kinds | None, None)
        else:
            fields[f"{name}s" if name == "seed" else name] = (kinds, ... if field.is_required() else [field.default])
    return pydantic.create_model("Entry", __base__=_Grid, **fields)


class Entry(_entry()):
    """A grid of runs."""


class Sweep(BaseModel):
    """The whole specification."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = "sweep"
    runs: Annotated[list[Entry], Field(min_length=1)]
    keep_models: bool = False
    checkpoint_every: PositiveInt = 5_000

    def expanded(self) -> list[RunSpec]:
        """Every run, each once; what is wrong names its entry."""
        if (total := sum(entry.count() for entry in self.runs)) > MOST_RUNS:
            raise UnderhoodError(f"expected at most {MOST_RUNS} runs in a sweep", total)
        found: dict[str, tuple[int, RunSpec]] = {}
        for index, entry in enumerate(self.runs):
            try:
                for run in entry.runs():
                    _check(run)
                    if run.id in found:
                        what = f"{run.task} {run.model} hidden {run.hidden} seed {run.seed}"
                        raise UnderhoodError(f"repeats a run of runs[{found[run.id][0]}]: {what}", remedy="Drop it.")
                    found[run.id] = (index, run)
            except UnderhoodError as error:
                raise UnderhoodError(f"runs[{index}]: {error.rule}", error.got, error.remedy) from None
        return [run for _, run in found.values()]


def _check(run: RunSpec) -> None:
    """What types cannot tell: names, and combinations that do not exist."""
    chosen = ARCHITECTURES[run.model]
    if chosen.most_layers is not None and run.layers > chosen.most_layers:
        raise UnderhoodError(f"expected layers of at most {chosen.most_layers} for {run.model}", run.layers)
    if run.pre_readout is not None and "pre_readout" not in chosen.sizes:
        raise UnderhoodError(f"{run.model} has no pre_readout to choose", remedy="Leave it out.")
    for name in run.settings.keys() & set(TASK_FIELDS):
        raise UnderhoodError(f"{name} is a field of its own", remedy="Write it beside settings, not into it.")
    task = run.make_task()
    if run.optimizer == "levenberg":
        if not chosen.second_order:
            raise UnderhoodError(f"levenberg does not train {run.model}", remedy="Use the optimizer adamw.")
        if task.second_order is None:
            raise UnderhoodError(f"levenberg does not train on {run.task}", remedy="Use the optimizer adamw.")
        if run.hidden < 2:
            raise UnderhoodError("expected 2 hidden neurons or more for levenberg", run.hidden)


def read_spec(source: str | Path | dict[str, Any]) -> Sweep:
    """A sweep from a JSON file or from its content, checked."""
    return parse(source) if isinstance(source, dict) else parse(_content(Path(source)), str(source))


def parse(content: Any, name: str = "the specification") -> Sweep:
    """Of the right form, or an error that names the place."""
    try:
        return Sweep.model_validate(content)
    except pydantic.ValidationError as error:
        # A misspelt name leaves the right one missing: the misspelling says more.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        count = error.error_count()
        more = f" ({count - 1} more)" if count > 1 else ""
        got = repr(first.get("input"))
        got = got if len(got) <= 60 else got[:57] + "…"
        raise UnderhoodError(f"{name}: {_place(first['loc'])}: {first['msg']}{more}", got) from None


def _place(location: tuple[int | str, ...]) -> str:
    """runs[2].hidden[0], as one would write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.lstrip(".") or "the top level"


def _content(path: Path) -> Any:
    if path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
        raise UnderhoodError(f"expected at most {MOST_BYTES} bytes in {path}", size)
    content = read_bytes(path)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UnderhoodError(f"{path} is not JSON: {reason}") from None
