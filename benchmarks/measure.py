"""Times to compare: every candidate in turn, round after round, and the best round of each.

Other programs on the machine only ever add time, and add it to all candidates alike when they take turns; so the
least of many rounds is the measure, and ratios are taken within one run.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PAUSE = 0.1  # seconds: the idle threads of OpenBLAS and OpenMP keep a core busy for a while after their last product
RESULTS = Path(__file__).resolve().parent.parent / "results" / "bench"


def best_seconds(
    candidates: Mapping[str, tuple[Callable[[], Any], int]],
    rounds: int = 20,
    at_least: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds a step. A candidate is a function and how many steps one call of it takes."""
    repeats = {}
    for name, (call, _) in candidates.items():
        call()  # compiles
        begun = clock()
        call()
        repeats[name] = max(1, round(at_least / max(clock() - begun, 1e-9)))
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, (call, steps) in candidates.items():
            time.sleep(PAUSE)
            begun = clock()
            for _ in range(repeats[name]):
                call()
            best[name] = min(best[name], (clock() - begun) / (repeats[name] * steps))
    return best


def store(suite: str, rows: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> Path:
    """results/bench/<suite>.json: the rows and what they were measured with."""
    import jax
    import numpy as np

    from underhood.studies.artifact import commit_of_source

    RESULTS.mkdir(parents=True, exist_ok=True)
    provenance = {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "commit": commit_of_source(),
    }
    path = RESULTS / f"{suite}.json"
    record = {"suite": suite, "rows": rows, **(extra or {}), "provenance": provenance}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def row(
    name: str,
    here: float,
    *,
    unit: str = "",
    aim: float | None = None,
    at_least: float | None = None,
    detail: str = "",
) -> dict[str, Any]:
    """One line of the table; `met` is null where nothing was asked for."""
    met = None if at_least is None else bool(here >= at_least)
    return {"name": name, "here": here, "unit": unit, "aim": aim, "at_least": at_least, "met": met, "detail": detail}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """The table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "here", "asked", "aim", "met", "detail", title=title, title_justify="left")
    for entry in rows:
        asked, aim = (f"{entry[key]:g}" if entry[key] is not None else "–" for key in ("at_least", "aim"))
        met = {None: "", True: "✓", False: "✗"}[entry["met"]]
        table.add_row(entry["name"], f"{entry['here']:.3g} {entry['unit']}", asked, aim, met, entry["detail"])
    Console(width=140).print(table)
