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
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from underhood.errors import UnderhoodError
from underhood.interop.extras import require
from underhood.storage.atomic import write_atomically

RESULTS, SPEC = "results.jsonl", "spec.json"


class Store:
    """The results of one sweep; one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.torn = path, 0
        self.done: dict[str, dict[str, Any]] = {}
        self._descriptor = -1

    @contextlib.contextmanager
    def opened(self, spec: dict[str, Any], *, resume: bool) -> Iterator[Store]:
        """Ours alone until the end; a folder with results in it is gone on with only if asked."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UnderhoodError(f"the sweep's folder {self.path} can be written", error.strerror or error) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnderhoodError(
                    "one sweep at a time writes into a folder",
                    f"{self.path}, in use",
                    "Wait for it, or use another --out.",
                ) from None
            self._open(spec, resume)
            yield self
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            os.close(lock)

    def _open(self, spec: dict[str, Any], resume: bool) -> None:
        described = self.path / SPEC
        if described.exists() and not resume:
            raise UnderhoodError(
                "a sweep has a folder of its own", f"{self.path}, which holds one", "Use --resume or another --out."
            )
        write_atomically(described, (json.dumps(spec, indent=1, ensure_ascii=False) + "\n").encode())
        results = self.path / RESULTS
        lines, whole, self.torn = read_lines(results) if results.exists() else ([], 0, 0)
        try:
            self._descriptor = os.open(results, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._descriptor, whole)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise UnderhoodError(f"{results} can be written", error.strerror or error) from error
        for line in lines:
            self.done.setdefault(line["id"], line)

    def add(self, record: dict[str, Any]) -> bool:
        """A run that ended; False if it stands there already."""
        if record["id"] in self.done:
            return False
        content = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        begin = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            if os.write(self._descriptor, content) < len(content):
                raise OSError(28, os.strerror(28))
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, begin)
            raise UnderhoodError(
                f"{self.path / RESULTS} can be written", error.strerror or error, "What ended before is kept: --resume."
            ) from error
        self.done[record["id"]] = record
        return True

    def keep(self, name: str, content: bytes) -> None:
        """A network, before the line that speaks of it."""
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"{name}.safetensors", content)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """The records, the bytes that hold them, and 1 if a torn last line follows; a bad line elsewhere is an error."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnderhoodError(f"{path} can be read", error.strerror or error) from error
    records, at = [], 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or not _is_result(record):
                raise ValueError("not a result")
        except (ValueError, RecursionError):
            if at + len(line) == len(content) and not line.endswith(b"\n"):
                return records, at, 1
            raise UnderhoodError(f"{path} holds one result a line", f"line {number}: {line[:60]!r}") from None
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
    """SQL over the results, as the table `runs`: query("sweeps/x", "select model, min(held_out_loss) from runs …")."""
    duckdb = require("duckdb", "sweep", "a question to a sweep")
    file = Path(path) / RESULTS
    if not file.exists():
        raise UnderhoodError("a sweep's folder has a results.jsonl", str(path), "Run `underhood sweep` first.")
    whole = [record["id"] for record in read_lines(file)[0]]  # names a broken line better than duckdb does
    with duckdb.connect(config={"enable_external_access": "true"}) as connection:
        try:
            source = connection.read_json(str(file), format="newline_delimited", ignore_errors=True, sample_size=-1)
            # From here on nothing but the table can be read, whatever the question says.
            connection.execute("create table runs as select * from source where list_contains(?, id)", [whole])
            connection.execute("set enable_external_access = false")
            del source
        except duckdb.Error as error:
            raise UnderhoodError(f"{file} is a table of results", str(error).splitlines()[0]) from None
        try:
            answer = connection.execute(question)
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
        except duckdb.Error as error:
            raise UnderhoodError("a question is SQL over the table runs", str(error).splitlines()[0]) from None
