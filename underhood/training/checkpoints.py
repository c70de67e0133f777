"""Checkpoints: safetensors whose names carry their checksum, written whole or not at all.

    checkpoints/step-000005000-0f3a….safetensors

The name ends in the first 16 hexadecimal digits of the SHA-256 of the whole file, so that a file cut short or
with one byte changed anywhere is told from a good one, and there is no second file that could be out of step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np

from underhood.core.errors import UnderhoodError
from underhood.core.files import tensor_bytes, tensors_in
from underhood.core.folders import Folder

_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.safetensors")
KEEP = 3  # the newest, and two to fall back on


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: arrays, and how long the metrics log was."""

    step: int
    tensors: dict[str, np.ndarray]
    log_bytes: int
    path: Path | None = None


def write_checkpoint(folder: Folder, step: int, tensors: dict[str, np.ndarray], log_bytes: int) -> Path:
    """Write, then let the oldest go: never fewer good checkpoints than before."""
    plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header = {"format": "underhood-checkpoint/1", "step": str(step), "log_bytes": str(log_bytes)}
    content = tensor_bytes(plain, header)
    path = folder.write(f"step-{step:09d}-{_digest(content)}.safetensors", content)
    remove_oldest(folder)
    return path


def remove_oldest(folder: Folder) -> None:
    """All but the newest few; a run that was killed before it came to this does it when it is resumed."""
    folder.remove(*_numbered(folder)[KEEP:])


def read_checkpoint(folder: Folder, name: str) -> Checkpoint:
    """A checkpoint whose bytes are the ones that were written; anything else is refused by name."""
    match, path = _NAME.fullmatch(name), folder.path / name
    if match is None:
        raise UnderhoodError("expected a checkpoint named step-<number>-<checksum>.safetensors", name)
    content = folder.read(name)
    digest = _digest(content)
    if digest != match[2]:
        raise UnderhoodError(f"the checkpoint {path} is damaged: its checksum is {digest}, not {match[2]}")
    header, tensors = tensors_in(content, path)
    if header.get("format") != "underhood-checkpoint/1" or header.get("step") != str(int(match[1])):
        raise UnderhoodError(f"expected a checkpoint of the step in its name: {path}", json.dumps(header))
    if not re.fullmatch("[0-9]{1,18}", header.get("log_bytes", "")):
        raise UnderhoodError(f"expected the length of the log in {path}", repr(header.get("log_bytes"))[:60])
    return Checkpoint(int(match[1]), tensors, int(header["log_bytes"]), path)


def newest_good(folder: Folder) -> tuple[Checkpoint | None, list[UnderhoodError]]:
    """The newest checkpoint that is whole, and what was wrong with each newer one."""
    problems: list[UnderhoodError] = []
    for name in _numbered(folder):
        try:
            return read_checkpoint(folder, name), problems
        except UnderhoodError as problem:
            problems.append(problem)
    return None, problems


def _numbered(folder: Folder) -> list[str]:
    """Newest first; a step may have two files after a corrupted one was passed over."""
    names = [name for name in folder.names() if _NAME.fullmatch(name)]
    return sorted(names, key=lambda name: (name[5:14], folder.modified(name)), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
