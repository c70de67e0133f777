"""A run folder: run.json (settings), metrics.jsonl, checkpoints/, and at the end a model for each member.

runs/x/run.json                 what decides the result; a resumed run must ask for the same
runs/x/metrics.jsonl            fit/metrics.py
runs/x/checkpoints/             fit/checkpoints.py
runs/x/model-seed-0.safetensors the trained network (docs/format.md)
runs/x/timing.json              seconds so far: kept apart, as no clock enters the files above
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from underhood.errors import UnderhoodError
from underhood.fit.checkpoints import Checkpoint, newest_good, write_checkpoint
from underhood.fit.metrics import MemoryLog, MetricsLog
from underhood.storage.atomic import read_bytes, write_atomically


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
        """The settings of the run that stands here; none where there is none yet."""
        described = self.path / "run.json"
        return _settings_in(described) if described.exists() else {}

    def open(self, settings: dict[str, Any], *, resume: bool) -> Checkpoint | None:
        """Start, or find where to go on; refuse a folder that holds another run."""
        described = self.path / "run.json"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnderhoodError(f"the run folder {self.path} can be made", error.strerror or error) from error
        for torn in (*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")):
            torn.unlink(missing_ok=True)  # a kill in the middle of a write; the folder is ours alone while locked
        if described.exists():
            if not resume:
                raise UnderhoodError(
                    "a run has a folder of its own", f"{self.path}, which holds one", "Use --resume or another --out."
                )
            _require_same(self.recorded, settings, self.path)
            found, self.problems = newest_good(self.checkpoints)
        else:
            write_atomically(described, (json.dumps(settings, indent=1, ensure_ascii=False) + "\n").encode())
            found = None
        self.log = MetricsLog(self.path / "metrics.jsonl", found.log_bytes if found else 0)
        self.last_checkpoint = found.path if found else None
        return found

    def save(self, step: int, tensors: dict[str, Any]) -> Path:
        """A checkpoint, after the log that it counts on has reached the disk."""
        self.last_checkpoint = write_checkpoint(self.checkpoints, step, tensors, self.log.flush())
        return self.last_checkpoint

    def add_seconds(self, seconds: float) -> float:
        """Seconds of all sittings; a sitting that was killed is not counted."""
        path, before = self.path / "timing.json", 0.0
        with contextlib.suppress(OSError, ValueError, KeyError):
            before = float(json.loads(path.read_text())["seconds"])
        write_atomically(path, json.dumps({"seconds": before + seconds}).encode())
        return before + seconds

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Two processes in one folder would write each other's lines."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UnderhoodError(f"the run folder {self.path} can be written", error.strerror or error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnderhoodError(
                    "one process at a time runs in a folder", f"{self.path}, in use", "Wait for it or stop it."
                ) from None
            yield
        finally:
            self.log.close()
            os.close(descriptor)


def _settings_in(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is JSON", error, "Start again in another folder.") from None
    if not isinstance(settings, dict):
        raise UnderhoodError(f"{path} holds the settings of a run", type(settings).__name__)
    return settings


def _require_same(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    now = json.loads(json.dumps(now))
    different = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if different:
        shown = ", ".join(f"{name} {_short(before.get(name))} → {_short(now.get(name))}" for name in different)
        raise UnderhoodError(
            f"a resumed run has the settings of {path / 'run.json'}", shown, "Give the same flags, or another --out."
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
