"""What commands print: one JSON object on stdout with --json, a table otherwise; the rest on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from underhood.core.errors import UnderhoodError

if TYPE_CHECKING:
    from rich.table import Table

DONE, ANSWER_IS_NO, BAD_INPUT = 0, 1, 2
INTERNAL_ERROR = 70  # as sysexits.h has it: a bug must not look like an answer
INTERRUPTED = 130  # 128 + SIGINT: stopped by Ctrl-C


def print_json(payload: dict[str, Any]) -> None:
    """One object on one line; NaN and infinity, which JSON does not have, become null."""
    sys.stdout.write(json.dumps(_plain(payload), ensure_ascii=False, allow_nan=False) + "\n")


def print_table(title: str, rows: dict[str, Any]) -> None:
    """A two-column table of names and values."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(escape(name.replace("_", " ")), escape(number(value)))
    show(table)


def show(table: Table) -> None:
    """Print a table whole: it is wider than the terminal rather than without its digits (1.206… for 1.206e-23).

    rich would cut the widest column, whatever is in it. Here every column has room for its longest word, and those
    that need the least beyond it are served first.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    wide = console.options.update(width=sys.maxsize)
    needed = Measurement.get(console, wide, table).minimum
    width, spare, ranges = max(console.width, needed), max(console.width - needed, 0), []
    for column in table.columns:
        found = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        column.width = max(one.minimum for one in found)
        ranges.append((max(one.maximum for one in found) - column.width, column))
    for served, (wanted, column) in enumerate(sorted(ranges, key=lambda entry: entry[0])):
        given = min(wanted, spare // (len(ranges) - served))
        column.width, spare = (column.width or 0) + given, spare - given
    Console(width=width).print(table)


def number(value: Any) -> str:
    """A value of a table: three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else str(value)


def note(text: str) -> None:
    """A remark for a person, on stderr."""
    sys.stderr.write(text + "\n")


def announce(cost: str | None) -> None:
    """What a command will take, where that is worth a line (costs.py)."""
    if cost is not None:
        note(f"underhood: {cost}")


def require_seed(seed: int) -> None:
    """NumPy's generators take no other."""
    if seed < 0:
        raise UnderhoodError("expected a seed of 0 or more", seed, "Use --seed 0.")


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
