"""One line of JSON a run, appended and flushed to the disk as it ends; duckdb asks the questions.

    sweeps/x/spec.json        what was asked for
    sweeps/x/results.jsonl    a line for each run that ended
    sweeps/x/models/          its network, where the sweep keeps them
    sweeps/x/jobs/            checkpoints of what is under way

A kill can tear the last line in two. Whoever writes next takes the torn piece away and says so; whoever only reads
leaves it out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes, write_atomically
from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.core.lock import locked
from underhood.training.folder import listed

RESULTS, SPEC = "results.jsonl", "spec.json"

# The specification in the folder → what is different in it.
Compare = Callable[[Any], list[str]]


class Store:
    """The results of one sweep; one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.torn = path, 0
        self.done: dict[str, dict[str, Any]] = {}
        self._descriptor = -1

    @contextlib.contextmanager
    def opened(self, spec: dict[str, Any], *, resume: bool, compare: Compare = lambda before: []) -> Iterator[Store]:
        """Ours alone until the end. A sweep in the folder is gone on with if asked, and if it is the same one.

        `compare` tells what is different in the specification that is there.
        """
        with locked(self.path):
            try:
                self._open(spec, resume, compare)
                yield self
            finally:
                if self._descriptor >= 0:
                    os.close(self._descriptor)

    @property
    def has_begun(self) -> bool:
        """Is there anything to go on from, or to lose?"""
        results = self.path / RESULTS
        return (results.exists() and results.stat().st_size > 0) or any(self.path.glob("jobs/*/checkpoints/*"))

    def _open(self, spec: dict[str, Any], resume: bool, compare: Compare) -> None:
        described, results = self.path / SPEC, self.path / RESULTS
        if described.exists() and self.has_begun:
            if not resume:
                raise UnderhoodError(f"{self.path} holds a sweep already", remedy="Use `resume=True` or another `out`.")
            if different := compare(_json_in(described)):
                remedy = "Use the specification that it was started with, or another `out`."
                raise UnderhoodError(f"the sweep in {self.path} is another one: {listed(different)}", remedy=remedy)
        else:
            write_atomically(described, (json.dumps(spec, indent=1, ensure_ascii=False) + "\n").encode())
        lines, whole, self.torn = read_lines(results) if results.exists() else ([], 0, 0)
        if any(line.get("retry") for line in lines):  # failed for want of memory, say: this machine may have more
            lines = [line for line in lines if not line.get("retry")]
            whole = len(write_atomically(results, b"".join(map(_line, lines))).read_bytes())
        try:
            self._descriptor = os.open(results, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._descriptor, whole)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise UnderhoodError(f"cannot write {results}: {error.strerror or error}") from error
        for line in lines:
            self.done.setdefault(line["id"], line)

    def add(self, record: dict[str, Any]) -> bool:
        """A run that ended; False if its line is there already."""
        if record["id"] in self.done:
            return False
        content = _line(record)
        begin = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            if os.write(self._descriptor, content) < len(content):
                raise OSError(28, os.strerror(28))
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, begin)
            what = f"cannot write {self.path / RESULTS}: {error.strerror or error}"
            raise UnderhoodError(what, remedy="What ended before is kept: `resume=True`.") from error
        self.done[record["id"]] = record
        return True

    def keep(self, name: str, content: bytes) -> None:
        """A network, before the line that speaks of it."""
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"{name}.safetensors", content)


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode()


def _json_in(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"cannot read {path}: {error}", remedy="Use another `out`.") from None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """The records, the bytes that hold them, and 1 if a torn last line follows; a bad line elsewhere is an error."""
    content, records, at = read_bytes(path), [], 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or not _is_result(record):
                raise ValueError("not a result")
        except (ValueError, RecursionError):
            if at + len(line) == len(content) and not line.endswith(b"\n"):
                return records, at, 1
            raise UnderhoodError(f"expected one result a line in {path}", f"line {number}: {line[:60]!r}") from None
        records.append(record)
        at += len(line)
    return records, at, 0


def _is_result(record: Any) -> bool:
    """With what every reader counts on: a name, and how the run ended."""
    return isinstance(record, dict) and isinstance(record.get("id"), str) and record.get("status") in ("done", "failed")


def results(path: str | Path) -> list[dict[str, Any]]:
    """Every result of a sweep's folder."""
    file = Path(path) / RESULTS
    return read_lines(file)[0] if file.exists() else []


def query(path: str | Path, question: str) -> list[dict[str, Any]]:
    """SQL over the results of a sweep, as the table `runs`: query("sweeps/x", "select model, seed from runs").

    `path`: the sweep's folder. `question`: in duckdb's SQL; it can read nothing but the table. A row is a dictionary.
    """
    duckdb = require("duckdb", "sweep", "a question to a sweep")
    file = Path(path) / RESULTS
    if not file.exists():
        raise UnderhoodError(f"no {RESULTS} in {path}", remedy="Run `underhood sweep` first.")
    whole = [record["id"] for record in read_lines(file)[0]]  # names a broken line better than duckdb does
    with duckdb.connect(config={"enable_external_access": "true"}) as connection:
        try:
            source = connection.read_json(str(file), format="newline_delimited", ignore_errors=True, sample_size=-1)
            # From here on nothing but the table can be read, whatever the question says.
            connection.execute("create table runs as select * from source where list_contains(?, id)", [whole])
            connection.execute("set enable_external_access = false")
            del source
        except duckdb.Error as error:
            raise UnderhoodError(f"{file} is not a table of results: {str(error).splitlines()[0]}") from None
        try:
            answer = connection.execute(question)
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
        except duckdb.Error as error:
            raise UnderhoodError("expected SQL over the table runs", str(error).splitlines()[0]) from None
