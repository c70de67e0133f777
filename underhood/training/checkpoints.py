"""Checkpoints: safetensors whose names carry their checksum, written whole or not at all.

    checkpoints/step-000005000-0f3a….safetensors

The name ends in the first 16 hexadecimal digits of the SHA-256 of the whole file, so that a file cut short or
with one byte changed anywhere is told from a good one, and there is no second file that could be out of step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np

from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.files import read_tensors, tensor_bytes

_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.safetensors")
KEEP = 3  # the newest, and two to fall back on


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: arrays, and how long the metrics log was."""

    step: int
    tensors: dict[str, np.ndarray]
    log_bytes: int
    path: Path | None = None


def write_checkpoint(folder: Path, step: int, tensors: dict[str, np.ndarray], log_bytes: int) -> Path:
    """Write, then let the oldest go: never fewer good checkpoints than before."""
    plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header = {"format": "underhood-checkpoint/1", "step": str(step), "log_bytes": str(log_bytes)}
    content = tensor_bytes(plain, header)
    path = write_atomically(folder / f"step-{step:09d}-{_digest(content)}.safetensors", content)
    for old in _numbered(folder)[KEEP:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint whose bytes are the ones that were written; anything else is refused by name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise UnderhoodError("expected a checkpoint named step-<number>-<checksum>.safetensors", path.name)
    digest = _digest(read_bytes(path))
    if digest != match[2]:
        raise UnderhoodError(f"the checkpoint {path} is damaged: its checksum is {digest}, not {match[2]}")
    header, tensors = read_tensors(path)
    if header.get("format") != "underhood-checkpoint/1" or header.get("step") != str(int(match[1])):
        raise UnderhoodError(f"expected a checkpoint of the step in its name: {path}", json.dumps(header))
    if not re.fullmatch("[0-9]{1,18}", header.get("log_bytes", "")):
        raise UnderhoodError(f"expected the length of the log in {path}", repr(header.get("log_bytes"))[:60])
    return Checkpoint(int(match[1]), tensors, int(header["log_bytes"]), path)


def newest_good(folder: Path) -> tuple[Checkpoint | None, list[UnderhoodError]]:
    """The newest checkpoint that is whole, and what was wrong with each newer one."""
    problems: list[UnderhoodError] = []
    for path in _numbered(folder):
        try:
            return read_checkpoint(path), problems
        except UnderhoodError as problem:
            problems.append(problem)
    return None, problems


def _numbered(folder: Path) -> list[Path]:
    """Newest first; a step may have two files after a corrupted one was passed over."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name[5:14], path.stat().st_mtime_ns), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
