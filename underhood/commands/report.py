"""`underhood report`: the results as one page to look at."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, note, print_json


@dataclasses.dataclass(frozen=True)
class Report:
    """Write what reproduce made as one self-contained HTML page: tables, charts, weights, provenance."""

    results: Annotated[Path, tyro.conf.Positional] = Path("out")
    """Folder that reproduce wrote to, with one or several budgets."""
    out: Path = Path("report.html")
    """Page to write (HTML)."""
    force: bool = False
    """Write over a file of another kind."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.core.outputs import PAGE, require_outputs
        from underhood.studies.report import write_report

        require_outputs((self.out, PAGE), force=self.force)
        path = write_report(self.results, self.out)
        payload = {"out": str(path), "bytes": path.stat().st_size}
        print_json(payload) if self.json else note(f"{path}: open it in a browser; it works offline")
        return DONE
