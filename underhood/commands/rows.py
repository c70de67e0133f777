"""A table of rows in which nothing is cut: a loss of 1e-23 without its exponent would be another number."""

from __future__ import annotations

from typing import Any


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """One line a row. What is the same in all of several rows goes into the title; a table wider than the terminal
    is printed as wide as it is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = [[_text(row.get(name)) for name in names] for row in rows]
    same = [len(rows) > 1 and len({line[at] for line in texts}) == 1 for at in range(len(names))]
    shared = [f"{name} {texts[0][at]}" for at, name in enumerate(names) if same[at]]
    heading = " · ".join([title, *shared])
    table = Table(title=escape(heading), title_justify="left")
    for name, is_same in zip(names, same, strict=True):
        if not is_same:
            table.add_column(escape(name), no_wrap=True)
    for line in texts:
        table.add_row(*(escape(text) for text, is_same in zip(line, same, strict=True) if not is_same))
    console = Console()
    console.width = max(console.width, console.measure(table).maximum)
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
