"""A folder that belongs to a run or a sweep: everything inside it is reached by descriptor, and no link is followed.

The folder itself may be a link, as whoever names it pleases. What is inside may have come from somebody else: a link
there would have a run read, empty or overwrite files elsewhere. Writes are whole or not at all, and on the disk when
they return: the file first, then the name that it gets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from underhood.core.atomic import SPECIAL
from underhood.core.errors import UnderhoodError
from underhood.core.interrupts import interrupts_blocked
from underhood.core.memory import require_memory

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_REMEDY = "Remove it, or choose another `out`."


@dataclasses.dataclass(frozen=True)
class Folder:
    """The folder `inner` of the folder `top`; it need not be there yet."""

    top: Path
    inner: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.top.joinpath(*self.inner)

    def inside(self, name: str) -> Folder:
        return Folder(self.top, (*self.inner, name))

    def make(self) -> Folder:
        """This folder, made with those above it unless it is there."""
        try:
            if not self.inner:
                if self.top.exists() and not self.top.is_dir():
                    raise UnderhoodError(f"not a folder: {self.top}", remedy="Choose another `out`.")
                self.top.mkdir(parents=True, exist_ok=True)
                return self
            outer = Folder(self.top, self.inner[:-1]).make()
            with outer._opened() as descriptor, contextlib.suppress(FileExistsError):
                os.mkdir(self.inner[-1], 0o777, dir_fd=descriptor)
            with self._opened():
                return self
        except OSError as error:
            raise UnderhoodError(
                f"cannot write into {self.path}: {error.strerror or error}", remedy="Choose another `out`."
            ) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder, reached from its top without a link on the way."""
        descriptor = os.open(self.top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, name in enumerate(self.inner):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
                try:
                    inner = os.open(name, flags, dir_fd=descriptor)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        what = f"expected a folder, not a link: {self.top.joinpath(*self.inner[: depth + 1])}"
                        raise UnderhoodError(what, _kind_of(name, descriptor), _REMEDY) from None
                    raise
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """What is in it, sorted; nothing where there is no such folder."""
        try:
            with self._opened() as descriptor:
                return sorted(os.listdir(descriptor))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise UnderhoodError(f"not a folder: {self.path}", remedy="Choose another `out`.") from None

    def has(self, name: str) -> bool:
        return name in self.names()

    def modified(self, name: str) -> int:
        """When a file was written last, in nanoseconds; 0 where it is gone."""
        try:
            with self._opened() as descriptor:
                return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return 0

    def require_own(self, *beginnings: str) -> None:
        """Refuse links under names that begin like this, before hours of work rather than after them."""
        for name in self.names():
            if not name.startswith(beginnings):
                continue
            with self._opened() as descriptor:
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise UnderhoodError(f"expected a file, not a link: {self.path / name}", "a link", _REMEDY)

    def read(self, name: str) -> bytes:
        """The content of a file, or one line on why not."""
        path = self.path / name
        try:
            with os.fdopen(self.open(name, _READ), "rb") as file:
                require_memory(os.fstat(file.fileno()).st_size, str(path), "Read it on a machine with more memory.")
                return file.read()
        except FileNotFoundError:
            raise UnderhoodError(f"no such file: {path}") from None
        except OSError as error:
            raise UnderhoodError(f"cannot read {path}: {error.strerror or error}") from error

    def write(self, name: str, content: bytes) -> Path:
        """A file with this content: under another name first, on the disk, then renamed."""
        path, part = self.path / name, f".{name}.{secrets.token_hex(4)}.part"
        try:
            with interrupts_blocked(), self._opened() as folder:
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                    with os.fdopen(os.open(part, flags, 0o666, dir_fd=folder), "wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                    os.fsync(folder)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(part, dir_fd=folder)
                    raise
        except OSError as error:
            remedy = "What was there before is untouched."
            raise UnderhoodError(f"cannot write {path}: {error.strerror or error}", remedy=remedy) from error
        return path

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a regular file in this folder; one that is to be written has no other name elsewhere."""
        with self._opened() as folder:
            try:
                descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise UnderhoodError(
                        f"expected a file, not a link: {self.path / name}", "a link", _REMEDY
                    ) from None
                raise
        found = os.fstat(descriptor)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if stat.S_ISREG(found.st_mode) and not (writes and found.st_nlink > 1):
            return descriptor
        os.close(descriptor)
        if (what := SPECIAL.get(stat.S_IFMT(found.st_mode))) is not None:
            raise UnderhoodError(f"not a regular file: {self.path / name} is {what}")
        raise UnderhoodError(
            f"expected a file with one name, not a link: {self.path / name}", "a second name of another", _REMEDY
        )

    def remove(self, *names: str) -> None:
        """These files, those that are there."""
        with contextlib.suppress(FileNotFoundError), self._opened() as folder:
            for name in names:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def remove_parts(self) -> None:
        """What a kill in the middle of a write left; the folder is ours alone while it is locked."""
        self.remove(*[name for name in self.names() if name.startswith(".") and name.endswith(".part")])

    def remove_tree(self) -> None:
        """The folder with all that is in it; a link in it goes, what it leads to stays."""
        outer = Folder(self.top, self.inner[:-1])
        with contextlib.suppress(OSError), outer._opened() as descriptor:
            shutil.rmtree(self.inner[-1], ignore_errors=True, dir_fd=descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Made if it is not there, and ours alone until the end: two would write each other's lines.

        A process that dies lets go of it.
        """
        self.make()
        try:
            descriptor = self.open(".lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
        except OSError as error:
            what = f"cannot write into {self.path}: {error.strerror or error}"
            raise UnderhoodError(what, remedy="Choose another `out`.") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    remedy = "Wait for it, or use another `out`."
                    raise UnderhoodError(f"another process is at work in {self.path}", remedy=remedy) from None
                remedy = "Use an `out` on a file system that has locks, such as a disk of this machine."
                raise UnderhoodError(f"cannot lock {self.path}: {error.strerror or error}", remedy=remedy) from None
            yield
        finally:
            os.close(descriptor)


def _kind_of(name: str, descriptor: int) -> str:
    mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
    return "a link" if stat.S_ISLNK(mode) else "no folder"
