"""A run folder: run.json (settings), metrics.jsonl, checkpoints/, and at the end a model for each member.

runs/x/run.json                 what decides the result; a resumed run must ask for the same
runs/x/metrics.jsonl            fit/metrics.py
runs/x/checkpoints/             fit/checkpoints.py
runs/x/model-seed-0.safetensors the trained network (docs/format.md)
runs/x/timing.json              seconds so far: kept apart, as no clock enters the files above

A folder without a checkpoint or a result holds nothing to go on from: a new run may start there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.lock import locked
from underhood.training.checkpoints import Checkpoint, newest_good, write_checkpoint
from underhood.training.metrics import MemoryLog, MetricsLog

COMMAND = "command"  # key of run.json: the flags that a resumed run takes over; no part of what must be the same
MOST_SHOWN = 6  # of the settings that differ


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: MetricsLog | MemoryLog = MemoryLog()
        self.last_checkpoint: Path | None = None
        self.problems: list[UnderhoodError] = []

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings of the run in this folder; none where there is no run yet."""
        described = self.path / "run.json"
        return _settings_in(described) if described.exists() else {}

    @property
    def has_begun(self) -> bool:
        """Is there anything to go on from, or to lose?"""
        return any(any(self.path.glob(kept)) for kept in ("checkpoints/step-*", "model-*", "result-*"))

    def open(
        self, settings: dict[str, Any], *, resume: bool, command: dict[str, Any] | None = None
    ) -> Checkpoint | None:
        """Start, or find where to go on; refuse a folder that holds another run."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnderhoodError(f"cannot make the run folder {self.path}: {error.strerror or error}") from error
        for torn in (*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")):
            torn.unlink(missing_ok=True)  # a kill in the middle of a write; the folder is ours alone while locked
        described, found = self.path / "run.json", None
        different = differences(self.recorded, {**_plain(settings), COMMAND: self.recorded.get(COMMAND)})
        if described.exists() and self.has_begun:
            if not resume:
                raise UnderhoodError(f"{self.path} holds a run already", remedy="Use `resume=True` or another `out`.")
            if different:
                remedy = "Use `resume=True` with the settings it was started with, or another `out`."
                raise UnderhoodError(f"the run in {self.path} has other settings: {listed(different)}", remedy=remedy)
            found, self.problems = newest_good(self.checkpoints)
        elif different or not resume:
            kept = settings if command is None else {**settings, COMMAND: command}
            write_atomically(described, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())
            (self.path / "metrics.jsonl").unlink(missing_ok=True)
        self.log = MetricsLog(self.path / "metrics.jsonl", found.log_bytes if found else 0)
        self.last_checkpoint = found.path if found else None
        return found

    def save(self, step: int, tensors: dict[str, Any]) -> Path:
        """A checkpoint, after the log that it counts on has reached the disk."""
        self.last_checkpoint = write_checkpoint(self.checkpoints, step, tensors, self.log.flush())
        return self.last_checkpoint

    def add_seconds(self, seconds: float) -> float:
        """Seconds of all sittings; of one that was killed, those up to its last checkpoint."""
        path, before = self.path / "timing.json", 0.0
        with contextlib.suppress(OSError, ValueError, KeyError):
            before = float(json.loads(path.read_text())["seconds"])
        write_atomically(path, json.dumps({"seconds": before + seconds}).encode())
        return before + seconds

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Ours alone; the log is closed at the end."""
        with locked(self.path):
            try:
                yield
            finally:
                self.log.close()


def _settings_in(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(read_bytes(path))
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
