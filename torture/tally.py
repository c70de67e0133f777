"""What was tried, what survived, what was lost: one line of the summary for each kind of harm."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from underhood.studies.artifact import commit_of_source

PARTS = (
    *("files", "outputs", "memory", "api", "hostile", "signals", "crashes", "disk"),
    *("numbers", "determinism", "streaming"),
)
RESULTS = Path(__file__).resolve().parent.parent / "results" / "torture.json"
SHOWN = 12  # losses that are kept in words


@dataclasses.dataclass
class Tally:
    """`lost` has a sentence for each loss; what could not be tried here is `skipped`, with the reason."""

    part: str
    name: str
    tried: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    detail: str = ""
    skipped: str = ""
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def survived(self) -> int:
        return self.tried - len(self.lost)

    def count(self, problem: str | None) -> None:
        """One more attempt; `problem` says how it was lost."""
        self.tried += 1
        if problem is not None:
            self.lost.append(problem)

    def row(self) -> dict[str, Any]:
        return {
            "name": f"{self.part}: {self.name}",
            "tried": self.tried,
            "survived": self.survived,
            "lost": len(self.lost),
            "detail": self.detail,
            **({"skipped": self.skipped} if self.skipped else {}),
            **({"numbers": self.numbers} if self.numbers else {}),
            **({"losses": self.lost[:SHOWN]} if self.lost else {}),
        }


def show(tallies: Iterable[Tally]) -> None:
    """The summary on the terminal, and every loss in words below it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=150)
    table = Table("what", "tried", "survived", "lost", "detail", title="torture", title_justify="left")
    tallies = list(tallies)
    for tally in tallies:
        row = tally.row()
        detail = f"skipped: {tally.skipped}" if tally.skipped else tally.detail
        table.add_row(row["name"], *(f"{row[key]:,}" for key in ("tried", "survived", "lost")), escape(detail))
    console.print(table)
    for tally in tallies:
        for problem in tally.lost[:SHOWN]:
            console.print(escape(f"lost · {tally.part}: {tally.name}: {problem}"), style="red")


def store(tallies: Iterable[Tally], scale: str, seconds: dict[str, float], path: Path = RESULTS) -> Path:
    """The rows and what they were made with. A part replaces its own rows; those of the other parts stay."""
    tallies, before = list(tallies), json.loads(path.read_text()) if path.exists() else {}
    stays = before.get("provenance", {}).get("scale") == scale
    rows = [row for row in before["rows"] if _part(row) not in seconds] if stays else []
    rows = sorted([*rows, *(tally.row() for tally in tallies)], key=_place)
    packages = ("jax", "jaxlib", "equinox", "numpy", "safetensors", "torch", "onnxruntime", "pydantic", "duckdb")
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    made = {
        "seconds": {part: round(value, 1) for part, value in seconds.items()},
        "finished": dict.fromkeys(seconds, now),
        "commit": dict.fromkeys(seconds, commit_of_source()),
    }
    record = {
        "rows": rows,
        "tried": sum(row["tried"] for row in rows),
        "survived": sum(row["survived"] for row in rows),
        "lost": sum(row["lost"] for row in rows),
        "provenance": {
            "scale": scale,
            **{key: {**(before["provenance"].get(key, {}) if stays else {}), **value} for key, value in made.items()},
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in packages},
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def _part(row: dict[str, Any]) -> str:
    return row["name"].partition(":")[0]


def _place(row: dict[str, Any]) -> int:
    return PARTS.index(_part(row)) if _part(row) in PARTS else len(PARTS)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
