"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from underhood.errors import UnderhoodError


def write_atomically(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write beside `path`, flush to disk, then rename: a reader sees the old file or the new one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UnderhoodError("the folder to write to exists", str(path.parent), "Make it first.")
    if path.is_dir():
        raise UnderhoodError("the output is a file", f"the folder {path}", "Add a file name.")
    name = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException as error:
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()
        if isinstance(error, OSError):
            raise UnderhoodError(
                f"{path} can be written", error.strerror or error, "What was there before is untouched."
            ) from error
        raise
    return path


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with those above it unless it is there, and open to writing."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        remedy = "Choose another with --out."
        raise UnderhoodError(
            f"the folder {path} can be made and written to", error.strerror or error, remedy
        ) from error
    return path


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The file's content, or one line on why not."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise UnderhoodError("the file exists", str(path), "Check the path.") from None
    except IsADirectoryError:
        raise UnderhoodError("the input is a file", f"the folder {path}") from None
    except OSError as error:
        raise UnderhoodError(f"{path} can be read", error.strerror or error) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
