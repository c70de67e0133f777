"""One process at a time in a folder: two would write each other's lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from underhood.core.errors import UnderhoodError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made if it is not there, is ours alone until the end; a process that dies lets go of it."""
    if folder.exists() and not folder.is_dir():
        raise UnderhoodError(f"not a folder: {folder}", remedy="Choose another `out`.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UnderhoodError(
            f"cannot write into {folder}: {error.strerror or error}", remedy="Choose another `out`."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            remedy = "Wait for it, or use another `out`."
            raise UnderhoodError(f"another process is at work in {folder}", remedy=remedy) from None
        yield
    finally:
        os.close(descriptor)
