"""Tables on standard output."""

from __future__ import annotations

from typing import Any


def print_table(found: dict[str, Any]) -> None:
    from potstill.measure import table

    header, rows = table(found)
    _rich_table(header, rows)


def print_grid(cells: list[dict[str, Any]]) -> None:
    if cells:
        _rich_table(
            list(cells[0]), [[f"{100 * v:.2f}" if k == "dev" else str(v) for k, v in cell.items()] for cell in cells]
        )


def _rich_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(header):
        drawn.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        drawn.add_row(*row)
    wide = Console()
    Console(width=max(wide.width, 112)).print(drawn)
