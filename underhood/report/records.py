"""`<results>/<budget>/<artifact>.json`: what reproduce wrote, in the paper's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underhood.errors import UnderhoodError
from underhood.report.artifact import BUDGETS, PAPER
from underhood.storage.atomic import read_bytes

Record = dict[str, Any]


def load_records(results: Path) -> list[Record]:
    """Every record below `results`, a folder of budgets or one budget's; other JSON files are passed over."""
    if not results.is_dir():
        raise UnderhoodError("results are a folder", str(results), "Make them with: underhood reproduce --out results")
    paths = sorted(path for path in [*results.glob("*.json"), *results.glob("*/*.json")] if path.is_file())
    records = [record for path in paths if (record := _read(path)) is not None]
    if not records:
        remedy = "Make some with: underhood reproduce --out results"
        raise UnderhoodError("the folder holds results of underhood reproduce", str(results), remedy)
    return sorted(records, key=lambda record: (_place(record["artifact"], PAPER), _place(record["budget"], BUDGETS)))


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is JSON", error, "Make it again, or take it away.") from None
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list) or "artifact" not in record:
        return None
    rows = [row for row in record["rows"] if isinstance(row, dict)]
    return {**record, "artifact": str(record["artifact"]), "budget": str(record.get("budget", "")), "rows": rows}


def _place(name: str, order: Any) -> tuple[int, str]:
    """The paper's order first; names that it does not have come after, by name."""
    known = list(order)
    return (known.index(name) if name in known else len(known)), name
