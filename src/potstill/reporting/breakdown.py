"""Where the bytes and the milliseconds of teacher and students are, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potstill.reporting.numbers import MISSING, megabytes, percent, short
from potstill.reporting.tables import Cell, Line, Table


def breakdown_table(lines: Sequence[Line]) -> Table | None:
    """A row for each part, and two columns for each model: its weights in float32, and the time of a text. None without any."""
    lines = [line for line in lines if line.model.breakdown]
    if not lines:
        return None
    parts = dict.fromkeys(part for line in lines for part in line.model.breakdown)
    rows = [
        [Cell(part), *(_cell(line.model.breakdown, part, kind) for line in lines for kind in ("bytes", "ms"))]
        for part in parts
    ]
    head = ["", *(title for _ in lines for title in ("MB", "ms for a text"))]
    return Table(head, rows, groups=[("", 1), *((line.name, 2) for line in lines)])


def _cell(breakdown: Mapping[str, Mapping[str, float]], part: str, kind: str) -> Cell:
    """A number with its share of the whole below it."""
    value = breakdown.get(part, {}).get(kind)
    if value is None:
        return Cell(MISSING)
    whole = sum(numbers.get(kind, 0.0) for numbers in breakdown.values())
    return Cell(
        megabytes(value) if kind == "bytes" else short(value), note=f"{percent(value / whole, 0)} %" if whole else ""
    )
