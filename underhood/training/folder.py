"""A run folder: run.json (settings), metrics.jsonl, checkpoints/, and at the end a model for each member.

runs/x/run.json                 what decides the result; a resumed run must ask for the same
runs/x/metrics.jsonl            training/metrics.py
runs/x/checkpoints/             training/checkpoints.py
runs/x/model-seed-0.safetensors the trained network (docs/format.md)
runs/x/timing.json              seconds so far: kept apart, as no clock enters the files above

A folder without a checkpoint or a result holds nothing to go on from: a new run may start there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.folders import Folder
from underhood.training.checkpoints import Checkpoint, newest_good, remove_oldest, write_checkpoint
from underhood.training.config import FitConfig
from underhood.training.metrics import METRICS, MemoryLog, MetricsLog

RUN, TIMING = "run.json", "timing.json"
OWN = (RUN, TIMING, METRICS, "model-", "result-")  # how the names of a run's files begin

COMMAND = "command"  # key of run.json: the flags that a resumed run takes over; no part of what must be the same
MOST_SHOWN = 6  # of the settings that differ


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, Folder(path)
        self.log: MetricsLog | MemoryLog = MemoryLog()
        self.last_checkpoint: Path | None = None
        self.problems: list[UnderhoodError] = []

    @property
    def checkpoints(self) -> Folder:
        return self.files.inside("checkpoints")

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings of the run in this folder; none where there is no run yet."""
        return _settings_in(self.files) if self.files.has(RUN) else {}

    @property
    def has_begun(self) -> bool:
        """Is there anything to go on from, or to lose?"""
        results = any(name.startswith(("model-", "result-")) for name in self.files.names())
        return results or any(name.startswith("step-") for name in self.checkpoints.names())

    def open(
        self, settings: dict[str, Any], *, resume: bool, command: dict[str, Any] | None = None
    ) -> Checkpoint | None:
        """Start, or find where to go on; refuse a folder that holds another run."""
        self.checkpoints.make()
        self.files.require_own(*OWN)
        self.checkpoints.require_own("step-")
        for folder in (self.files, self.checkpoints):
            folder.remove_parts()
        found, recorded = None, self.recorded
        if recorded and "loss" not in recorded:  # a run from before losses were written down
            settings = {name: value for name, value in settings.items() if name != "loss"}
        different = differences(recorded, {**_plain(settings), COMMAND: recorded.get(COMMAND)})
        if recorded and self.has_begun:
            if not resume:
                raise UnderhoodError(f"{self.path} holds a run already", remedy="Use `resume=True` or another `out`.")
            if different:
                remedy = "Use `resume=True` with the settings it was started with, or another `out`."
                raise UnderhoodError(f"the run in {self.path} has other settings: {listed(different)}", remedy=remedy)
            remove_oldest(self.checkpoints)
            found, self.problems = newest_good(self.checkpoints)
        elif different or not resume:
            self.record(settings, command)
            self.files.remove(METRICS)
        self.log = MetricsLog(self.files, found.log_bytes if found else 0)
        self.last_checkpoint = found.path if found else None
        return found

    def extended(self, config: FitConfig, command: dict[str, Any] | None = None) -> FitConfig:
        """`config` for a run that has ended and is to go on: where one cosine ended, another begins.

        **Arguments:**

        - `config`: as it is asked for, with more steps than the run has.
        - `command`: the flags of the command line, to be kept from here on.

        **Returns:**

        The same, with the steps at which cosines begin anew.
        """
        recorded = self.recorded
        before = recorded.get("config")
        if not isinstance(before, dict) or config.restarts or "members" not in recorded:
            return config
        restarts, steps = before.get("restarts", []), before.get("steps", 0)
        if config.steps == steps:
            return dataclasses.replace(config, restarts=tuple(restarts))
        more = dataclasses.replace(config, restarts=(*restarts, steps)) if config.steps > steps else config
        if more.steps <= steps or {**before, **_plain(_stretch(more))} != _plain(more.as_dict()) or not self.has_ended:
            return config
        kept = recorded.get(COMMAND) if command is None else command
        self.record({**{k: v for k, v in recorded.items() if k != COMMAND}, "config": more.as_dict()}, kept)
        return more

    @property
    def has_ended(self) -> bool:
        """Is there a trained network?"""
        return any(name.startswith("model-") for name in self.files.names())

    def record(self, settings: dict[str, Any], command: dict[str, Any] | None) -> None:
        """Write the settings down."""
        kept = settings if command is None else {**settings, COMMAND: command}
        self.files.write(RUN, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())

    def save(self, step: int, tensors: dict[str, Any]) -> Path:
        """A checkpoint, after the log that it counts on has reached the disk."""
        self.last_checkpoint = write_checkpoint(self.checkpoints, step, tensors, self.log.flush())
        return self.last_checkpoint

    def add_seconds(self, seconds: float) -> float:
        """Seconds of all sittings; of one that was killed, those up to its last checkpoint."""
        before = 0.0
        with contextlib.suppress(UnderhoodError, ValueError, KeyError, TypeError, RecursionError):
            before = float(json.loads(self.files.read(TIMING))["seconds"])
        self.files.write(TIMING, json.dumps({"seconds": before + seconds}).encode())
        return before + seconds

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone; the log is closed at the end."""
        with self.files.locked():
            try:
                yield
            finally:
                self.log.close()


def _stretch(config: FitConfig) -> dict[str, Any]:
    """What changes as a run goes on."""
    return {"steps": config.steps, "restarts": config.restarts}


def _settings_in(folder: Folder) -> dict[str, Any]:
    path = folder.path / RUN
    try:
        settings = json.loads(folder.read(RUN))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is not JSON: {error}", remedy="Start again in another folder.") from None
    if not isinstance(settings, dict):
        raise UnderhoodError(f"expected the settings of a run in {path}", type(settings).__name__)
    return settings


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As they come back from a file: tuples are lists there."""
    try:
        return json.loads(json.dumps(settings))
    except TypeError as error:  # a task of somebody else's
        remedy = "Let the task's settings() return plain JSON."
        raise UnderhoodError(f"the settings of a run cannot be written: {error}", remedy=remedy) from None


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """`config.steps 300 → 500`: one entry for each value that differs, however deep it is."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = {key: f"{name}.{key}".lstrip(".") for key in (*before, *(key for key in now if key not in before))}
        return [text for key, where in inner.items() for text in differences(before.get(key), now.get(key), where)]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for at, (one, other) in pairs for text in differences(one, other, f"{name}[{at}]")]
    return [] if before == now else [f"{name} {_short(before)} → {_short(now)}"]


def listed(different: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(different) - MOST_SHOWN} more" if len(different) > MOST_SHOWN else ""
    return ", ".join(different[:MOST_SHOWN]) + more


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "…"
