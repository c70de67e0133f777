"""Rows of results as a table: what is the same in all of them is told once, above it."""

from __future__ import annotations

from typing import Any

from underhood.commands.output import show
from underhood.core.errors import printable


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """One line a row, nothing cut: a loss of 1e-23 without its exponent would be another number."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_text(row.get(name)) for row in rows] for name in names}
    same = {name: texts[0] for name, texts in columns.items() if len(texts) > 1 and len(set(texts)) == 1}
    shown = [name for name in names if name not in same]
    heading = " · ".join([title, *(f"{name} {text}" for name, text in same.items())])
    Console().print(escape(printable(heading)), soft_wrap=True, highlight=False)
    table = Table(*map(escape, shown))
    for at in range(len(rows)):
        table.add_row(*(escape(columns[name][at]) for name in shown))
    show(table)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)
