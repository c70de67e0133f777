"""The metrics log: JSON lines, none lost and none doubled, whenever the run is killed.

A line is a function of the run's settings alone (no clock in it). A resumed run starts at its checkpoint and comes
by lines that stand in the log already: it checks that they are the same, and writes on after the last. Nothing
that was written is taken back, except a last line that was torn in two by the kill.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError


class MetricsLog:
    """Appends to `path`; from `log_bytes` on, lines that exist are compared instead."""

    def __init__(self, path: Path, log_bytes: int = 0) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            content = path.read_bytes()
        except OSError as error:
            raise _cannot_write(path, error) from error
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < log_bytes:
            os.close(self._descriptor)
            raise UnderhoodError(
                f"expected at least {log_bytes} bytes in {path}, as at the checkpoint",
                len(whole),
                "The log was cut after the checkpoint: start again in another folder.",
            )
        self.bytes = log_bytes
        self._ahead = whole[log_bytes:].splitlines(keepends=True)
        self._ahead.reverse()
        try:
            self.lines = _parsed(path, whole[:log_bytes])
        except UnderhoodError:
            os.close(self._descriptor)
            raise
        if len(whole) < len(content):
            os.ftruncate(self._descriptor, len(whole))

    def write(self, line: dict[str, Any]) -> None:
        """One line, or the check that it is there."""
        self.lines.append(line)
        content = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        if self._ahead:
            if self._ahead.pop() == content:
                self.bytes += len(content)
                return
            # Another machine, or another number of threads: its numbers differ in the last bits. One log, one run.
            self._ahead.clear()
            os.ftruncate(self._descriptor, self.bytes)
        try:
            written = os.pwrite(self._descriptor, content, self.bytes)
            if written < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._descriptor, self.bytes)
            raise _cannot_write(self.path, error) from error
        self.bytes += len(content)

    def flush(self) -> int:
        """To the disk itself; the length that a checkpoint may rely on."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        return self.bytes

    def close(self) -> None:
        os.close(self._descriptor)


class MemoryLog:
    """The same for a run without a folder."""

    bytes = 0

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def flush(self) -> int:
        return 0

    def close(self) -> None: ...


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a log, and how many bytes of a torn last one were left out."""
    content = read_bytes(path)
    end = content.rfind(b"\n") + 1
    return _parsed(path, content[:end]), len(content) - end


def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            entry = json.loads(line)
            lines.append({**entry, "member": int(entry["member"])})
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):  # a member of 1e999 among them
            raise UnderhoodError(
                f"expected one JSON object a line in {path}",
                f"line {number}: {line[:60]!r}",
                "The log was changed after the checkpoint: start again in another folder.",
            ) from None
    return lines


def _cannot_write(path: Path, error: OSError) -> UnderhoodError:
    return UnderhoodError(
        f"cannot write {path}: {error.strerror or error}",
        remedy="What was written before is untouched; make room, then go on with `resume=True`.",
    )
