"""`underhood sweep`: many runs, on the cores of this machine or on a dask cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, print_json
from underhood.commands.rows import print_rows

COLUMNS = ("task", "model", "layers", "hidden", "seed", "learning_rate", "optimizer", "held_out_loss", "attention_r2")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train every run of a specification (docs/scale.md) and keep the results in one JSON-lines file."""

    spec: Annotated[Path, tyro.conf.Positional]
    """JSON file: entries with the flags of `underhood train`, each one value or a list."""
    out: Path
    """Folder of the results."""
    resume: bool = False
    """Go on with the sweep in --out."""
    workers: int | None = None
    """Processes on this machine, one core each; as many as there are cores unless given."""
    scheduler: str | None = None
    """Address of a dask scheduler, such as tcp://127.0.0.1:8786 (extra: distributed)."""
    tls_ca_file: Path | None = None
    """Certificate authority of a scheduler at tls://…"""
    tls_cert: Path | None = None
    """Certificate file of this client."""
    tls_key: Path | None = None
    """Private key file."""
    query: str | None = None
    """SQL over the results, the table `runs`, to print at the end (extra: sweep)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.extras import require
        from underhood.sweeps.spec import read_spec
        from underhood.sweeps.store import query
        from underhood.sweeps.sweep import SweepProgress, run_sweep

        if self.query:
            require("duckdb", "sweep", "--query")  # before the runs rather than after them
        sweep, tls = read_spec(self.spec), self._tls()
        options: dict[str, Any] = {"scheduler": self.scheduler, "workers": self.workers, "resume": self.resume}
        try:
            records = run_sweep(sweep, self.out, tls=tls, watch=SweepProgress(), warn=note, **options)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"go on with: underhood sweep {self.spec} --out {self.out} --resume") from None
        failed = [record for record in records if record["status"] != "done"]
        answer = query(self.out, self.query) if self.query else None
        if self.json:
            print_json(
                {"name": sweep.name, "out": str(self.out), "failed": len(failed), "runs": records, "query": answer}
            )
        else:
            print_rows(f"{sweep.name}: {self.out}", [_shown(row) for row in records] if answer is None else answer)
            for record in failed:
                note(f"failed: {record['model']} hidden {record['hidden']} seed {record['seed']}: {record['reason']}")
        return ANSWER_IS_NO if failed else DONE

    def _tls(self) -> Any:
        from underhood.core.errors import UnderhoodError
        from underhood.sweeps.cluster import Tls

        files = (self.tls_ca_file, self.tls_cert, self.tls_key)
        if all(file is None for file in files):
            if self.scheduler and self.scheduler.startswith("tls://"):
                raise UnderhoodError("a tls:// scheduler needs --tls-ca-file, --tls-cert and --tls-key")
            return None
        for file in files:
            if file is None or not file.is_file():
                raise UnderhoodError("expected three files: --tls-ca-file, --tls-cert and --tls-key", str(file))
        return Tls(*[file for file in files if file is not None])


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in (*COLUMNS, "status") if name in record}
