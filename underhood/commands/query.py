"""`underhood query`: SQL over the results of a sweep or the log of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from underhood.commands.output import DONE, print_json


@dataclasses.dataclass(frozen=True)
class Query:
    """Ask the results of a sweep (the table `runs`) or the log of a run (the table `metrics`) in SQL."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of a sweep or of a run."""
    question: Annotated[str, tyro.conf.Positional]
    """SQL, such as: select hidden, median(held_out_loss) from runs group by hidden."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.commands.rows import print_rows
        from underhood.sweeps.store import query

        rows = query(self.folder, self.question)
        print_json({"rows": rows}) if self.json else print_rows(str(self.folder), rows)
        return DONE
