"""A sweep as the user writes it: entries with the flags of `underhood train`, each one value or a list of them.

    {"name": "widths",
     "runs": [{"task": "teacher-student", "d": 6, "model": "gated-rnn", "hidden": [16, 32, 64], "seeds": 3,
               "steps": 20000}]}

An entry is every combination of its lists. All of it is checked before anything starts.
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError
from underhood.training.specification import TASK_FIELDS, RunSpec, check
from underhood.training.tasks.make import task_settings

MOST_RUNS = 1_000_000
MOST_BYTES = 64 * 2**20


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
                    check(run)
                    if run.id in found:
                        what = f"{run.task} {run.model} hidden {run.hidden} seed {run.seed}"
                        raise UnderhoodError(f"repeats a run of runs[{found[run.id][0]}]: {what}", remedy="Drop it.")
                    found[run.id] = (index, run)
            except UnderhoodError as error:
                raise UnderhoodError(f"runs[{index}]: {error.rule}", error.got, error.remedy) from None
        return [run for _, run in found.values()]


def read_spec(source: str | Path | dict[str, Any]) -> Sweep:
    """A sweep from a JSON file or from its content, checked."""
    return parse(source) if isinstance(source, dict) else parse(_content(Path(source)), str(source))


def parse(content: Any, name: str = "the specification") -> Sweep:
    """Of the right form, or an error that names the place."""
    try:
        return Sweep.model_validate(content)
    except pydantic.ValidationError as error:
        # A misspelt name leaves the right one missing: the misspelling says more.
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        count = error.error_count()
        more = f" ({count - 1} more)" if count > 1 else ""
        if first["type"] == "extra_forbidden":
            raise _unknown_field(name, first["loc"], more) from None
        got = repr(first.get("input"))
        got = got if len(got) <= 60 else got[:57] + "…"
        raise UnderhoodError(f"{name}: {_place(first['loc'])}: {first['msg']}{more}", got) from None


def _unknown_field(name: str, location: tuple[int | str, ...], more: str) -> UnderhoodError:
    """A misspelling, with the field that was meant."""
    known = [*(Sweep if len(location) == 1 else Entry).model_fields]
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
    return UnderhoodError(f"{name}: {_place(location)} is not a setting{more}", remedy=remedy)


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
