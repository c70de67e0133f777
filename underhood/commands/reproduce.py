"""`underhood reproduce`: the paper's tables and figures, with the paper's numbers beside ours."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from underhood.commands.output import ANSWER_IS_NO, DONE, note, number, print_json, show
from underhood.core.interrupts import advice


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Make tables and figures of the paper and compare them with it, row by row."""

    artifacts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Tables and figures, such as table1, figure2 or zoo; all that the budget has unless given."""
    budget: str = "quick"
    """Size of the runs: quick (minutes), laptop (hours), overnight (a day of core hours) or paper (the paper's own
    steps)."""
    out: Path = Path("out")
    """Folder for JSON, PNG and PDF, in a folder named after the budget."""
    so_far: bool = False
    """Figures from the runs of their sweep that have ended, without training any."""
    verbose: bool = False
    """Print every row, not only targets that were missed."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from underhood.studies.artifact import covered, make_artifact, require_covered
        from underhood.studies.report import write_report

        for name in self.artifacts:
            require_covered(name, self.budget, so_far=self.so_far)
        wanted = self.artifacts or tuple(covered(self.budget, so_far=self.so_far))
        records, began = [], time.monotonic()
        for index, name in enumerate(wanted):
            if len(wanted) > 1:
                note(f"[{index + 1}/{len(wanted)}] {name} … ({time.monotonic() - began:.0f} s so far)")
            unfinished = f"{name} is unfinished; the same command goes on from there"
            try:
                with advice(unfinished):
                    records.append(make_artifact(name, self.budget, self.out, so_far=self.so_far)[1])
            except KeyboardInterrupt:
                raise KeyboardInterrupt(unfinished) from None
        if self.json:
            print_json({"budget": self.budget, "artifacts": records})
        else:
            _print_summary(records)
            if self.verbose:
                _print_rows(records, "all rows")
            elif missed := [{**record, "rows": _missed(record)} for record in records if _missed(record)]:
                _print_rows(missed, "targets missed")
        if records:
            folder = self.out / self.budget
            page = write_report(folder, folder / "report.html", kept=self.budget == "quick")
            note(f"All rows, charts and weights: {page}")
        return ANSWER_IS_NO if any(map(_missed, records)) else DONE


def _missed(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["met"] is False]


def _print_summary(records: list[dict[str, Any]]) -> None:
    """A line for each artifact."""
    from rich.table import Table

    from underhood.studies.artifact import ARTIFACTS

    table = Table("artifact", "", "targets met", "seconds", title="paper against here", title_justify="left")
    for record in records:
        name = record["artifact"]
        asked = [row for row in record["rows"] if row["met"] is not None]
        met = f"{sum(row['met'] for row in asked)} of {len(asked)}" if asked else "–"
        table.add_row(name, ARTIFACTS[name].title, met, f"{record['provenance']['wall_seconds']:.1f}")
    show(table)


def _print_rows(records: list[dict[str, Any]], title: str) -> None:
    from rich.table import Table

    from underhood.pages.drawing import seeds_of

    table = Table("artifact", "what", "paper", "here", "target", "met", title=title, title_justify="left")
    ticks = {None: "", True: "✓", False: "✗"}
    for record in records:
        for row in record["rows"]:
            paper = "–" if row["paper"] is None else str(row["paper"])
            seeds = seeds_of(row)
            here = number(row["here"]) + (f" ({seeds})" if seeds else "")
            table.add_row(record["artifact"], row["name"], paper, here, row["target"] or "", ticks[row["met"]])
        table.add_section()
    show(table)
