"""Files of JSON lines that only grow: a line is there whole or not at all, and a torn last one is known as such."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.folders import Folder

Record = dict[str, Any]


def json_line(record: Record) -> bytes:
    """One object on one line; NaN and infinity, which JSON does not have, become null."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(record), parse_constant=lambda name: None), ensure_ascii=False)
    return (text + "\n").encode()


def parse_lines(
    content: bytes, path: Path, check: Callable[[Any], Record], remedy: str = ""
) -> tuple[list[Record], int]:
    """The records, and the bytes that hold them: what follows the last line break was torn by a kill.

    **Arguments:**

    - `content`: of the file.
    - `path`: for messages.
    - `check`: a record, checked and perhaps completed; it raises `ValueError` where one is none.
    - `remedy`: what to do about a line that is none.

    **Returns:**

    The records, and the number of bytes up to the end of the last whole line.
    """
    end, records = content.rfind(b"\n") + 1, []
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            records.append(check(json.loads(line)))
        except UnderhoodError as error:
            raise UnderhoodError(f"{path}, line {number}: {error.rule}", error.got, error.remedy or remedy) from None
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            rule = f"expected one JSON object per line in {path}"
            raise UnderhoodError(rule, f"line {number}: {line[:60]!r}", remedy) from None
    return records, end


class LineFile:
    """A file of a folder, open for lines to be added."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.path = folder.path / name
        try:
            self._descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._cannot_write(error) from error

    def content(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        size = os.fstat(self._descriptor).st_size
        return b"".join(iter(lambda: os.read(self._descriptor, max(size, 1)), b""))

    def add(self, line: bytes, at: int) -> None:
        """Write from byte `at` on; where that fails, the file ends there."""
        try:
            if os.pwrite(self._descriptor, line, at) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.cut(at)
            raise self._cannot_write(error) from error

    def cut(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        """To the disk itself."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._cannot_write(error) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _cannot_write(self, error: OSError) -> UnderhoodError:
        what = f"cannot write {self.path}: {error.strerror or error}"
        remedy = "What was written before is kept; make room, then go on with `resume=True`."
        return UnderhoodError(what, remedy=remedy)
