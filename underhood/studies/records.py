"""`<results>/<budget>/<artifact>.json`: what reproduce wrote, tables before figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underhood.core.atomic import read_bytes
from underhood.core.errors import UnderhoodError
from underhood.studies.artifact import BUDGETS, place

Record = dict[str, Any]
ROW = {"name", "here", "met"}
REMEDY = "Make them with: underhood reproduce"


def load_records(results: Path) -> list[Record]:
    """Every record below `results`, a folder of budgets or one budget's; other JSON files are passed over."""
    if not results.is_dir():
        raise UnderhoodError(f"no such folder: {results}", remedy=REMEDY)
    paths = sorted(path for path in [*results.glob("*.json"), *results.glob("*/*.json")] if path.is_file())
    records = [record for path in paths if (record := _read(path)) is not None]
    if not records:
        raise UnderhoodError(f"no results of underhood reproduce in {results}", remedy=REMEDY)
    return sorted(records, key=lambda record: (place(record["artifact"]), budget_place(record["budget"])))


def _read(path: Path) -> Record | None:
    try:
        record = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UnderhoodError(f"{path} is not JSON: {error}", remedy="Make it again, or remove it.") from None
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list) or "artifact" not in record:
        return None
    for index, row in enumerate(record["rows"]):
        if not isinstance(row, dict) or not row.keys() >= ROW:
            got = ", ".join(row)[:60] or "nothing" if isinstance(row, dict) else type(row).__name__
            rule = f"expected name, here and met in rows[{index}] of {path}"
            raise UnderhoodError(rule, got, "Make it again, or remove it.")
    return {**record, "artifact": str(record["artifact"]), "budget": str(record.get("budget", ""))}


def budget_place(budget: str) -> tuple[int, str]:
    """From the smallest to the largest; unknown ones after them, by name."""
    return (BUDGETS.index(budget) if budget in BUDGETS else len(BUDGETS)), budget
