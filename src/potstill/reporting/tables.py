"""Tables of models as cells: which models there are, and what the columns say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from potstill.measuring.measurements import TEACHER, MeasuredModel, Measurements, as_number, short_name
from potstill.measuring.run_folder import FinishedRun
from potstill.reporting.columns import SUMMARY, Column, columns, nothing
from potstill.reporting.numbers import MISSING, percent

MOST_GRID_CELLS = 200


@dataclass(frozen=True)
class Line:
    """A model in a table. `kind`: its name in its run; `name`: its name in the table."""

    name: str
    kind: str
    model: MeasuredModel
    colour: str = ""  # in figures

    @property
    def is_student(self) -> bool:
        return not self.kind.startswith(TEACHER)


@dataclass
class Cell:
    """`interval` stands beside the text, or below it on the page, where `note` stands too. `shade`: 0 to 1."""

    text: str
    interval: str = ""
    note: str = ""
    best: bool = False
    shade: float = 0.0


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of each row is its name. `groups`: headings over columns, with how many they span."""

    head: list[str]
    rows: list[list[Cell]]
    caption: str = ""
    groups: list[tuple[str, int]] = field(default_factory=list)


def summary(measurements: Measurements, with_dev: bool = True) -> Table:
    """The table of one run, for terminal and model card. Beside a test set, dev has no interval, or is omitted."""
    lines = [Line(name, name, model) for name, model in measurements.models.items()]
    listed = [column for column in columns([measurements], measurements.models.values()) if SUMMARY in column.tables]
    if any(column.text and not column.on_dev for column in listed):
        listed = [replace(column, interval=nothing) if column.on_dev else column for column in listed]
        listed = [column for column in listed if with_dev or not column.on_dev]
    return model_table(lines, listed, [column.heading for column in listed]) or Table(
        [""], [[Cell(line.name)] for line in lines]
    )


def page_table(lines: Sequence[Line], listed: Sequence[Column], table: str) -> Table | None:
    chosen = [column for column in listed if table in column.tables]
    return model_table(lines, chosen, [column.title for column in chosen])


def model_table(lines: Sequence[Line], listed: Sequence[Column], titles: Sequence[str]) -> Table | None:
    """A row per model, without columns in which no model has a number; None where no column is left."""
    filled = [(column, title, cells_of(column, lines)) for column, title in zip(listed, titles, strict=True)]
    filled = [each for each in filled if any(cell.text != MISSING for cell in each[2])]
    if not filled:
        return None
    groups: list[tuple[str, int]] = [("", 1)]
    for column, _, _ in filled:
        same = column.group == groups[-1][0] and len(groups) > 1
        groups = [*groups[:-1], (column.group, groups[-1][1] + 1)] if same else [*groups, (column.group, 1)]
    rows = [[Cell(line.name), *(cells[row] for _, _, cells in filled)] for row, line in enumerate(lines)]
    return Table(["", *(title for _, title, _ in filled)], rows, groups=groups)


def cells_of(column: Column, lines: Sequence[Line]) -> list[Cell]:
    """A cell per model. The best students are marked, unless all students show the same number."""
    cells = []
    for line in lines:
        text = column.text(line.model) if column.text else column.written(column.value(line.model))
        cells.append(Cell(text, column.interval(line.model), column.note(line.model)))
    students = {
        row: value
        for row, line in enumerate(lines)
        if line.is_student and (value := column.value(line.model)) is not None
    }
    if column.more_is_better is not None and len(set(map(column.written, students.values()))) > 1:
        best = column.written((max if column.more_is_better else min)(students.values()))
        for row, value in students.items():
            cells[row].best = column.written(value) == best
    return cells


def grid_table(run: FinishedRun) -> Table | None:
    cells = run.measurements.grid[:MOST_GRID_CELLS]
    if not cells:
        return None
    paths = list(dict.fromkeys(path for cell in cells for path in cell if path != "dev"))
    rows = [
        [
            Cell(str(place)),
            *(Cell(short_name(cell.get(path, MISSING))) for path in paths),
            Cell(percent(as_number(cell.get("dev")), 2)),
        ]
        for place, cell in enumerate(cells, 1)
    ]
    return Table(["", *map(short_name, paths), "dev"], rows)
