"""A sweep as the user writes it: entries with the flags of `underhood train`, each one value or a list of them.

    {"name": "widths",
     "runs": [{"task": "teacher-student", "d": 6, "model": "gated-rnn", "hidden": [16, 32, 64], "seeds": 3,
               "steps": 20000}]}

An entry stands for every combination of its lists. All of it is checked before anything starts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from underhood.errors import UnderhoodError
from underhood.fit.config import LARGEST_RATE

MOST_RUNS = 1_000_000
MOST_BYTES = 64 * 2**20


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _seeds(value: Any) -> Any:
    """`3` is seeds 0, 1 and 2, as with `underhood train --seeds 3`; a list names them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_RUNS:
            raise ValueError(f"a number of seeds is from 1 to {MOST_RUNS}")
        return list(range(value))
    return value


Positive = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0, le=LARGEST_RATE, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]
Several = Field(min_length=1)


class RunSpec(BaseModel):
    """One run: all that decides its numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str
    model: str = "gated-rnn"
    hidden: Positive
    layers: Positive = 1
    pre_readout: Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    learning_rate: Rate = 1e-3
    weight_decay: Decay = 0.0
    optimizer: Literal["adamw", "levenberg"] = "adamw"
    steps: Positive = 10_000
    batch_size: Positive = 64
    restarts: NonNegativeInt = 2
    d: Positive = 4
    length: Positive = 32
    teacher_seed: NonNegativeInt = 0
    examples: Positive = 12
    d_x: Positive = 3
    d_y: Positive = 3
    probe: bool = False

    @property
    def id(self) -> str:
        """A name that follows from the settings: the same run has the same name everywhere."""
        canonical = json.dumps(self.model_dump(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Runs of one shape train together in one program."""
        alike = self.model_dump(exclude={"seed", "learning_rate", "weight_decay"})
        alone = self.seed if self.optimizer == "levenberg" else None
        return (*alike.values(), alone)

    def make_task(self) -> Any:
        from underhood.data import TASKS

        sizes = {"examples": self.examples, "d_x": self.d_x, "d_y": self.d_y}
        return TASKS[self.task](d=self.d, length=self.length, task_seed=self.teacher_seed, **sizes)


class Entry(BaseModel):
    """A grid of runs; what is not given has the value that `RunSpec` gives it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: Annotated[list[str], BeforeValidator(_listed), Several]
    model: Annotated[list[str], BeforeValidator(_listed), Several] = ["gated-rnn"]
    hidden: Annotated[list[Positive], BeforeValidator(_listed), Several]
    layers: Annotated[list[Positive], BeforeValidator(_listed), Several] = [1]
    pre_readout: Annotated[list[Positive] | None, BeforeValidator(lambda v: v if v is None else _listed(v))] = None
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], BeforeValidator(_seeds), Several] = [0]
    learning_rate: Annotated[list[Rate], BeforeValidator(_listed), Several] = [1e-3]
    weight_decay: Annotated[list[Decay], BeforeValidator(_listed), Several] = [0.0]
    optimizer: Annotated[list[Literal["adamw", "levenberg"]], BeforeValidator(_listed), Several] = ["adamw"]
    steps: Positive = 10_000
    batch_size: Positive = 64
    restarts: NonNegativeInt = 2
    d: Positive = 4
    length: Positive = 32
    teacher_seed: NonNegativeInt = 0
    examples: Positive = 12
    d_x: Positive = 3
    d_y: Positive = 3
    probe: bool = False

    def count(self) -> int:
        lists = (value for value in vars(self).values() if isinstance(value, list))
        total = 1
        for values in lists:
            total *= len(values)
        return total

    def runs(self) -> Iterator[RunSpec]:
        fields = {("seed" if name == "seeds" else name): value for name, value in vars(self).items()}
        lists = {name: value for name, value in fields.items() if isinstance(value, list)}
        rest = {name: value for name, value in fields.items() if not isinstance(value, list)}
        for chosen in itertools.product(*lists.values()):
            yield RunSpec(**rest, **dict(zip(lists, chosen, strict=True)))


class Sweep(BaseModel):
    """The whole specification."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = "sweep"
    runs: Annotated[list[Entry], Several]
    keep_models: bool = False
    checkpoint_every: PositiveInt = 5_000

    def expanded(self) -> list[RunSpec]:
        """Every run, each once; what is wrong names the entry it stands in."""
        if (total := sum(entry.count() for entry in self.runs)) > MOST_RUNS:
            raise UnderhoodError(f"a sweep has at most {MOST_RUNS} runs", total)
        found: dict[str, tuple[int, RunSpec]] = {}
        for index, entry in enumerate(self.runs):
            for run in entry.runs():
                _check(index, run)
                if run.id in found:
                    other = found[run.id][0]
                    what = f"{run.task} {run.model} hidden {run.hidden} seed {run.seed}"
                    raise UnderhoodError(
                        f"each run stands in a sweep once; runs[{index}] repeats one of runs[{other}]",
                        what,
                        "Take it out of one of them.",
                    )
                found[run.id] = (index, run)
        return [run for _, run in found.values()]


def _check(index: int, run: RunSpec) -> None:
    """What types cannot tell: names, and combinations that do not exist."""
    from underhood.cells import ARCHITECTURES
    from underhood.data import TASKS

    if run.task not in TASKS:
        raise UnderhoodError(f"runs[{index}].task is one of {', '.join(TASKS)}", repr(run.task))
    if run.model not in ARCHITECTURES:
        raise UnderhoodError(f"runs[{index}].model is one of {', '.join(ARCHITECTURES)}", repr(run.model))
    if run.model.startswith("gated-rnn") and run.layers > 1:
        raise UnderhoodError(f"runs[{index}].layers is 1 for a {run.model}", run.layers)
    if run.pre_readout is not None and run.model != "gated-rnn":
        raise UnderhoodError(f"runs[{index}].pre_readout belongs to a gated-rnn", run.model)
    if run.optimizer == "levenberg" and run.model != "gated-rnn":
        raise UnderhoodError(f"runs[{index}]: levenberg trains a gated-rnn", run.model, "Use the optimizer adamw.")
    if run.optimizer == "levenberg" and run.hidden < 2:
        raise UnderhoodError(f"runs[{index}]: levenberg takes 2 hidden neurons or more", run.hidden)


def read_spec(source: str | Path | dict[str, Any]) -> Sweep:
    """A sweep from a JSON file or from its content, checked."""
    return parse(source) if isinstance(source, dict) else parse(_content(Path(source)), str(source))


def parse(content: Any, name: str = "the specification") -> Sweep:
    try:
        return Sweep.model_validate(content)
    except pydantic.ValidationError as error:
        first, count = error.errors()[0], error.error_count()
        more = f" ({count - 1} more)" if count > 1 else ""
        got = repr(first.get("input"))
        got = got if len(got) <= 60 else got[:57] + "…"
        raise UnderhoodError(f"{name}: {_place(first['loc'])}: {first['msg']}{more}", got) from None


def _place(location: tuple[int | str, ...]) -> str:
    """runs[2].hidden[0], as one would write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.lstrip(".") or "the top level"


def _content(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnderhoodError(f"a specification has at most {MOST_BYTES} bytes", f"{path}: {path.stat().st_size}")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnderhoodError(f"{path} can be read", error.strerror or error) from error
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UnderhoodError(f"{path} is JSON", reason) from None
