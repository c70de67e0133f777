"""A task by its name: its settings are the arguments of what is registered; a setting that it lacks is refused."""

from __future__ import annotations

import inspect
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.training.tasks.task import TASKS, AbstractTask

_NUMBERS = {int: "a whole number", float: "a number"}


def task_settings(name: str) -> dict[str, Any]:
    """Setting → default of a task; `inspect.Parameter.empty` where it has none."""
    parameters = inspect.signature(TASKS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def make_task(name: str, **settings: Any) -> AbstractTask:
    """A task of the registry, with its own settings: `make_task("linear-regression", examples=20)`.

    **Arguments:**

    - `name`: of the task; an unknown one lists them all.
    - `settings`: of this task; `underhood train --list` prints them with their defaults.

    **Returns:**

    The task.
    """
    known = task_settings(name)
    for setting, value in settings.items():
        if setting not in known:
            remedy = f"It has: {', '.join(known)}." if known else "It has none."
            raise UnderhoodError(f"the task {name} has no setting {setting}", remedy=remedy)
        _require_like(setting, value, known[setting])
    try:
        task = TASKS[name](**settings)
        sizes = {"d": task.d, "d_out": task.d_out, "steps": task.steps}
    except UnderhoodError:
        raise
    except Exception as error:  # whatever a task of somebody else's raises on bad settings
        raise UnderhoodError(f"the task {name} cannot be made: {type(error).__name__}: {error}") from error
    for what, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise UnderhoodError(f"expected the task {name} to have {what} of 1 or more", size)
    return task


def _require_like(setting: str, value: Any, default: Any) -> None:
    """A number where the default is one: text would fail late and far away."""
    wanted = _NUMBERS.get(type(default))
    fits = isinstance(value, int if type(default) is int else int | float) and not isinstance(value, bool)
    if wanted and not fits:
        raise UnderhoodError(f"expected {setting} to be {wanted}", repr(value))
