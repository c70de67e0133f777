"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from underhood.core.errors import UnderhoodError
from underhood.core.interrupts import interrupts_blocked
from underhood.core.memory import require_memory

SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def write_atomically(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write beside `path`, flush to disk, then rename: a reader sees the old file or the new one.

    A symbolic link stays, and its target is written; a file that was there before passes on its permissions.
    """
    path, name = Path(path), None
    target = output_target(path)
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        with interrupts_blocked():
            descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            Path(name).replace(target)
            _sync_folder(target.parent)
    except BaseException as error:
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()
        if isinstance(error, OSError):
            raise UnderhoodError(
                f"cannot write {path}: {error.strerror or error}", remedy="What was there before is untouched."
            ) from error
        raise
    return path


def output_target(path: str | os.PathLike[str]) -> Path:
    """The regular file to write for `path`, there or not yet; a rename would replace anything else for good."""
    path = Path(path)
    special = special_file(path)
    if special == "a folder":
        raise UnderhoodError(f"cannot write a file over a folder: {path}", remedy="Add a file name.")
    if special is not None:
        raise UnderhoodError(f"not a regular file: {path} is {special}", remedy="Choose another output.")
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UnderhoodError(f"cannot follow the symbolic link {path}: it leads back to itself")
    if not target.parent.is_dir():
        folder = target.parent if path.is_symlink() else path.parent
        raise UnderhoodError(f"no such folder: {folder}", remedy="Make it first.")
    return target


def special_file(path: str | os.PathLike[str]) -> str | None:
    """What `path` is if it is there and not a regular file, in words."""
    try:
        return SPECIAL.get(stat.S_IFMT(Path(path).stat().st_mode))
    except (OSError, ValueError):  # not there, or out of reach: whoever opens it says so
        return None


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with those above it unless it is there, and open to writing."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UnderhoodError(
            f"cannot write to the folder {path}: {error.strerror or error}", remedy="Choose another `out`."
        ) from error
    return path


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The file's content, or one line on why not: opening a FIFO would wait for a writer that may never come."""
    path = Path(path)
    special = special_file(path)
    if special is not None:
        raise UnderhoodError(f"not a regular file: {path} is {special}")
    try:
        require_memory(path.stat().st_size, str(path), "Read it on a machine with more memory.")
        return path.read_bytes()
    except FileNotFoundError:
        raise UnderhoodError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise UnderhoodError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _sync_folder(path: Path) -> None:
    """The new name on the disk, too; a folder that may be written but not read cannot be opened for it."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
