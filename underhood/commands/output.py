"""What commands print: one JSON object on stdout with --json, a table otherwise; the rest on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

DONE, ANSWER_IS_NO, BAD_INPUT = 0, 1, 2


def print_json(payload: dict[str, Any]) -> None:
    """One object on one line; NaN and infinity, which JSON does not have, become null."""
    sys.stdout.write(json.dumps(_plain(payload), ensure_ascii=False, allow_nan=False) + "\n")


def print_table(title: str, rows: dict[str, Any]) -> None:
    """A two-column table of names and values."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(escape(name.replace("_", " ")), escape(_text(value)))
    Console().print(table)


def note(text: str) -> None:
    """A remark for a person, on stderr."""
    sys.stderr.write(text + "\n")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else str(value)


def _plain(value: Any) -> Any:
    """JSON's own types out of NumPy's."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
