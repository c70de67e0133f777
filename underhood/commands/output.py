"""What commands print: one JSON object on stdout with --json, a table otherwise; the rest on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from underhood.core.errors import UnderhoodError, printable

if TYPE_CHECKING:
    from rich.table import Table

DONE, ANSWER_IS_NO, BAD_INPUT = 0, 1, 2
INTERNAL_ERROR = 70  # as sysexits.h has it: a bug must not look like an answer


def print_json(payload: dict[str, Any]) -> None:
    """One object on one line; NaN and infinity, which JSON does not have, become null."""
    text = json.dumps(_plain(payload), ensure_ascii=False, allow_nan=False)
    if text.isascii() or (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8":
        text = json.dumps(_plain(payload), allow_nan=False)
    # What a terminal would obey, as JSON's own escapes.
    sys.stdout.write("".join(each if printable(each) == each else f"\\u{ord(each):04x}" for each in text) + "\n")


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

    for column in table.columns:
        column.header = _cell(column.header)
        column._cells = [_cell(cell) for cell in column._cells]
    table.title = _cell(table.title)
    console = Console()
    wide = console.options.update(width=sys.maxsize)
    needed = Measurement.get(console, wide, table).minimum
    width, spare, ranges = max(console.width, needed), max(console.width - needed, 0), []
    for column in table.columns:
        sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        column.width = max(size.minimum for size in sizes)
        ranges.append((max(size.maximum for size in sizes) - column.width, column))
    for served, (wanted, column) in enumerate(sorted(ranges, key=lambda entry: entry[0])):
        given = min(wanted, spare // (len(ranges) - served))
        column.width, spare = (column.width or 0) + given, spare - given
    Console(width=width).print(table)


def _cell(cell: Any) -> Any:
    return printable(cell) if isinstance(cell, str) else cell


def number(value: Any) -> str:
    """A value of a table: three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else str(value)


def note(text: str) -> None:
    """A remark for a person, on stderr."""
    sys.stderr.write(printable(text) + "\n")


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
