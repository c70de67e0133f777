"""The metrics log: JSON lines, none lost and none doubled, whenever the run is killed.

A line is a function of the run's settings alone (no clock in it). A resumed run starts at its checkpoint and comes
by lines that stand in the log already: it checks that they are the same, and writes on after the last. Nothing
that was written is taken back, except a last line that was torn in two by the kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.folders import Folder
from underhood.core.json_lines import LineFile, json_line, parse_lines

METRICS = "metrics.jsonl"
_CHANGED = "The log was changed after the checkpoint: start again in another folder."


class MetricsLog:
    """Adds to the log of a folder; from `log_bytes` on, lines that exist are compared instead."""

    def __init__(self, folder: Folder, log_bytes: int = 0) -> None:
        self._file = LineFile(folder, METRICS)
        try:
            self._resume_from(log_bytes)
        except UnderhoodError:
            self.close()
            raise

    def _resume_from(self, log_bytes: int) -> None:
        content, path = self._file.content(), self._file.path
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < log_bytes:
            rule = f"expected at least {log_bytes} bytes in {path}, as at the checkpoint"
            remedy = "The log was cut after the checkpoint: start again in another folder."
            raise UnderhoodError(rule, len(whole), remedy)
        self.bytes = log_bytes
        self.lines, _ = parse_lines(whole[:log_bytes], path, _checked, _CHANGED)
        self._ahead = whole[log_bytes:].splitlines(keepends=True)[::-1]
        if len(whole) < len(content):
            self._file.cut(len(whole))

    def write(self, line: dict[str, Any]) -> None:
        """One line, or the check that it is there."""
        self.lines.append(line)
        content = json_line(line)
        if self._ahead:
            if self._ahead.pop() == content:
                self.bytes += len(content)
                return
            # Another machine, or another number of threads: its numbers differ in the last bits. One log, one run.
            self._ahead.clear()
            self._file.cut(self.bytes)
        self._file.add(content, self.bytes)
        self.bytes += len(content)

    def flush(self) -> int:
        """To the disk itself; the length that a checkpoint may rely on."""
        self._file.sync()
        return self.bytes

    def close(self) -> None:
        self._file.close()


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


def read_metrics(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a run's log, and how many bytes of a torn last one were left out."""
    content = Folder(folder).read(METRICS)
    lines, end = parse_lines(content, folder / METRICS, _checked, _CHANGED)
    return lines, len(content) - end


def _checked(entry: Any) -> dict[str, Any]:
    return {**entry, "member": int(entry["member"])}
