"""`underhood sweep`: many runs, on the cores of this machine or on a dask cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train every run of a specification (docs/scale.md) and keep the results in one JSON-lines file."""

    spec: Annotated[Path, tyro.conf.Positional]
    """JSON file: entries with the flags of `underhood train`, each one value or a list."""
    out: Path
    """Folder of the results; one that stands there goes on with --resume."""
    resume: bool = False
    """Skip what is done."""
    workers: int | None = None
    """Processes on this machine, one core each; as many as there are cores unless given."""
    scheduler: str | None = None
    """Address of a dask scheduler, tcp://127.0.0.1:8786 say (extra: distributed)."""
    tls_ca_file: Path | None = None
    """Certificate authority of a scheduler at tls://…"""
    tls_cert: Path | None = None
    """Our certificate for it."""
    tls_key: Path | None = None
    """And its key."""
    query: str | None = None
    """SQL to ask of the results at the end, over the table `runs`."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.extras import require
        from underhood.sweep import Teller, query, read_spec, run_sweep

        if self.query:
            require("duckdb", "sweep", "--query")  # before the runs rather than after them
        sweep, tls = read_spec(self.spec), self._tls()
        records = run_sweep(
            sweep,
            self.out,
            scheduler=self.scheduler,
            tls=tls,
            workers=self.workers,
            resume=self.resume,
            watch=Teller(),
            warn=note,
        )
        failed = [record for record in records if record["status"] != "done"]
        answer = query(self.out, self.query) if self.query else None
        if self.json:
            print_json(
                {"name": sweep.name, "out": str(self.out), "failed": len(failed), "runs": records, "query": answer}
            )
        else:
            _print(answer if answer is not None else records, f"{sweep.name}: {self.out}")
        return ANSWER_IS_NO if failed else DONE

    def _tls(self) -> Any:
        from underhood.errors import UnderhoodError
        from underhood.sweep.cluster import Tls

        files = (self.tls_ca_file, self.tls_cert, self.tls_key)
        if all(file is None for file in files):
            if self.scheduler and self.scheduler.startswith("tls://"):
                raise UnderhoodError("a tls:// scheduler takes --tls-ca-file, --tls-cert and --tls-key", "none of them")
            return None
        for file in files:
            if file is None or not file.is_file():
                raise UnderhoodError("--tls-ca-file, --tls-cert and --tls-key are three files", str(file))
        return Tls(*[file for file in files if file is not None])


def _print(rows: list[dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    usual = ("task", "model", "layers", "hidden", "seed", "learning_rate", "optimizer", "held_out_loss", "status")
    names = [name for name in usual if name in rows[0]] if rows and "id" in rows[0] else list(rows[0]) if rows else []
    table = Table(*map(escape, names), title=escape(title), title_justify="left")
    for row in rows:
        values = (row.get(name) for name in names)
        table.add_row(*(escape(f"{value:.4g}" if isinstance(value, float) else str(value)) for value in values))
    Console().print(table)
