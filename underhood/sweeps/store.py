"""One line of JSON per run, appended and flushed to the disk as it ends; duckdb asks the questions.

    sweeps/x/spec.json        what was asked for
    sweeps/x/results.jsonl    a line for each run that ended
    sweeps/x/models/          its network, where the sweep keeps them
    sweeps/x/jobs/            checkpoints of what is under way

A kill can tear the last line in two. Whoever writes next takes the torn piece away and says so; whoever only reads
leaves it out. The name of a run is a hash of its settings: a line whose settings have another name is refused.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from underhood.core.errors import UnderhoodError
from underhood.core.extras import require
from underhood.core.folders import Folder
from underhood.core.json_lines import LineFile, json_line, parse_lines
from underhood.training.folder import listed
from underhood.training.metrics import METRICS, read_metrics
from underhood.training.specification import run_of

RESULTS, SPEC, MODELS, JOBS = "results.jsonl", "spec.json", "models", "jobs"

# The specification in the folder → what is different in it.
Compare = Callable[[Any], list[str]]


class Store:
    """The results of one sweep; one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.files, self.torn = path, Folder(path), 0
        self.done: dict[str, dict[str, Any]] = {}
        self._results: LineFile | None = None
        self._bytes = 0

    @property
    def jobs(self) -> Folder:
        """Of what is under way."""
        return self.files.inside(JOBS)

    @contextlib.contextmanager
    def opened(self, spec: dict[str, Any], *, resume: bool, compare: Compare = lambda before: []) -> Iterator[Store]:
        """Ours alone until the end. A sweep in the folder is gone on with if asked, and if it is the same one.

        `compare` tells what is different in the specification that is there.
        """
        with self.files.locked():
            try:
                self._open(spec, resume, compare)
                yield self
            finally:
                if self._results is not None:
                    self._results.close()

    @property
    def has_begun(self) -> bool:
        """Is there anything to go on from, or to lose?"""
        if self.files.has(RESULTS) and self.files.read(RESULTS):
            return True
        return any(self.jobs.inside(name).inside("checkpoints").names() for name in self.jobs.names())

    def _open(self, spec: dict[str, Any], resume: bool, compare: Compare) -> None:
        self.files.require_own(SPEC, RESULTS, MODELS, JOBS)
        self.files.inside(MODELS).require_own("")
        self.jobs.require_own("")
        if self.files.has(SPEC) and self.has_begun:
            if not resume:
                raise UnderhoodError(f"{self.path} holds a sweep already", remedy="Use `resume=True` or another `out`.")
            if different := compare(self._spec()):
                remedy = "Use the specification that it was started with, or another `out`."
                raise UnderhoodError(f"the sweep in {self.path} is another one: {listed(different)}", remedy=remedy)
        else:
            self.files.write(SPEC, (json.dumps(spec, indent=1, ensure_ascii=False) + "\n").encode())
        content = self.files.read(RESULTS) if self.files.has(RESULTS) else b""
        lines, whole = parse_lines(content, self.path / RESULTS, _checked)
        self.torn = int(whole < len(content))
        if any(line.get("retry") for line in lines):  # failed for want of memory, say: this machine may have more
            lines = [line for line in lines if not line.get("retry")]
            content = b"".join(map(json_line, lines))
            self.files.write(RESULTS, content)
            whole = len(content)
        self._results, self._bytes = LineFile(self.files, RESULTS), whole
        if whole < len(content) or self.torn:
            self._results.cut(whole)
        for line in lines:
            self.done.setdefault(line["id"], line)

    def _spec(self) -> Any:
        try:
            return json.loads(self.files.read(SPEC).decode())
        except (ValueError, RecursionError) as error:
            raise UnderhoodError(f"cannot read {self.path / SPEC}: {error}", remedy="Use another `out`.") from None

    def add(self, record: dict[str, Any]) -> bool:
        """A run that ended; False if its line is there already."""
        if record["id"] in self.done:
            return False
        assert self._results is not None, "add belongs inside opened"
        content = json_line(record)
        self._results.add(content, self._bytes)
        try:
            self._results.sync()
        except UnderhoodError:
            self._results.cut(self._bytes)
            raise
        self._bytes += len(content)
        self.done[record["id"]] = record
        return True

    def keep(self, name: str, content: bytes) -> None:
        """A network, before the line that speaks of it."""
        self.files.inside(MODELS).make().write(f"{name}.safetensors", content)


def _checked(record: Any) -> dict[str, Any]:
    """A record with what every reader counts on: its settings, a name that follows from them, how the run ended."""
    if not isinstance(record, dict) or record.get("status") not in ("done", "failed"):
        raise ValueError("not a result")
    if record["status"] == "failed" and not isinstance(record.get("reason"), str):
        raise ValueError("no reason")
    return {**run_of(record).as_dict(), **record}


def results(path: str | Path) -> list[dict[str, Any]]:
    """Every result of a sweep's folder.

    **Arguments:**

    - `path`: the folder.

    **Returns:**

    A record for each run that ended; none where there is no sweep.
    """
    folder = Folder(Path(path))
    return parse_lines(folder.read(RESULTS), folder.path / RESULTS, _checked)[0] if folder.has(RESULTS) else []


def query(path: str | Path, question: str) -> list[dict[str, Any]]:
    """SQL over the results of a sweep, or over the log of a run: `query("sweeps/x", "select model, seed from runs")`.

    **Arguments:**

    - `path`: the folder of a sweep, whose results are the table `runs`, or of a run, whose log is the table `metrics`.
    - `question`: in duckdb's SQL; it can read nothing but the table.

    **Returns:**

    A dictionary for each row of the answer.
    """
    duckdb = require("duckdb", "sweep", "a question to a sweep")
    table, lines = _table(Path(path))
    with duckdb.connect() as connection, tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(b"".join(map(json_line, lines)))
        file.flush()
        try:
            source = connection.read_json(file.name, format="newline_delimited", sample_size=-1)
            connection.execute(f"create table {table} as select * from source")
            # From here on nothing but the table can be read, whatever the question says.
            connection.execute("set enable_external_access = false")
            del source
        except duckdb.Error as error:
            raise UnderhoodError(f"{path} is not a table of results: {str(error).splitlines()[0]}") from None
        try:
            answer = connection.execute(question)
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
        except duckdb.Error as error:
            raise UnderhoodError(f"expected SQL over the table {table}", str(error).splitlines()[0]) from None


def _table(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Its name and its rows."""
    folder = Folder(path)
    if folder.has(RESULTS):
        return "runs", results(path)
    if folder.has(METRICS):
        return "metrics", read_metrics(path)[0]
    raise UnderhoodError(f"no {RESULTS} and no {METRICS} in {path}", remedy="Run `underhood sweep` or `train` first.")
