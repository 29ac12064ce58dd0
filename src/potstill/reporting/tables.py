"""The tables of a report: which models there are, and what was measured of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from potstill.measuring.measurements import (
    PLAIN,
    data_sets,
    inside,
    interval,
    main_student,
    metrics_of,
    named,
    number,
    per_second,
    quoted_splits,
    searches,
    seeds_of,
    within,
)
from potstill.measuring.run_folder import FinishedRun
from potstill.reporting import figures as plots
from potstill.reporting.numbers import NOTHING, count, in_its_unit, megabytes, parameters, percent, score, short, titled
from potstill.reporting.sentences import nearest_classes

MOST_CLASSES = 20  # of a matrix: more cannot be read
MOST_CELLS = 200  # of a grid
RUNTIMES = {"pytorch": "PyTorch", "onnx": "ONNX Runtime"}
FIRST = ["teacher", "teacher int8", "fine-tuned", "fine-tuned int8"]


@dataclass(frozen=True)
class Line:
    """A model on the page: its name here, and its name in its run."""

    name: str
    kind: str
    model: Mapping[str, Any]
    run: FinishedRun
    colour: str

    @property
    def student(self) -> bool:
        return not self.kind.startswith("teacher")


@dataclass
class Cell:
    text: str
    note: str = ""
    best: bool = False
    shade: float = 0.0  # 0..1


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of each is its name. `groups` spans columns: (words, how many)."""

    head: list[str]
    rows: list[list[Cell]]
    caption: str = ""
    groups: list[tuple[str, int]] = field(default_factory=list)


def all_lines(runs: Sequence[FinishedRun]) -> list[Line]:
    """Every model under one name: of several runs, teachers and baselines that are the same stand once."""
    lines: list[Line] = []
    students = {number: main_student(run.found) for number, run in enumerate(runs)}
    kinds = list(dict.fromkeys([*FIRST, *(kind for run in runs for kind in run.found["models"])]))
    for kind in kinds:
        alike: dict[str, list[int]] = {}
        for place, run in enumerate(runs):
            own = len(runs) > 1 and kind.startswith(students[place])
            if kind in run.found["models"] and not own:
                alike.setdefault(json.dumps(run.found["models"][kind].get("quality"), sort_keys=True), []).append(place)
        for place, (_, which) in enumerate(alike.items()):
            first, more = runs[which[0]], len(which) - 1
            who = f"{first.name} and {more} more" if more else first.name
            name = named(kind) if len(alike) == 1 else f"{named(kind)} ({who})"
            lines.append(Line(name, kind, first.found["models"][kind], first, _colour(kind, place)))
    if len(runs) > 1:
        for place, run in enumerate(runs):
            for kind, model in run.found["models"].items():
                if kind.startswith(students[place]):
                    name = f"{run.name}{named(kind.removeprefix(students[place]))}"
                    lines.append(Line(name, kind, model, run, plots.COLOURS[place % len(plots.COLOURS)]))
    return lines


def _colour(kind: str, number: int) -> str:
    if kind.startswith("teacher"):
        return plots.GREY
    return plots.BASELINE if kind.startswith("fine-tuned") else plots.COLOURS[number % len(plots.COLOURS)]


def column(
    lines: Sequence[Line],
    value: Callable[[Mapping[str, Any]], Any],
    text: Callable[[Any], str],
    note: Callable[[Mapping[str, Any]], str] = lambda model: "",
    more: bool | None = True,
    words: Callable[[Mapping[str, Any]], str] | None = None,
) -> list[Cell]:
    """A cell per model. The best student's is marked (the most, or the least), unless all students show the same."""
    cells = [Cell(words(line.model) if words else text(value(line.model)), note(line.model)) for line in lines]
    known = {
        place: known
        for place, line in enumerate(lines)
        if line.student and (known := number(value(line.model))) is not None
    }
    if more is not None and len({text(value) for value in known.values()}) > 1:
        best = text((max if more else min)(known.values()))
        for place, value_ in known.items():
            cells[place].best = text(value_) == best
    return cells


def as_table(lines: Sequence[Line], columns: Sequence[tuple[str, str, list[Cell]]]) -> Table | None:
    """Columns of (group, head, cells), without those that say nothing."""
    told = [one for one in columns if any(cell.text != NOTHING for cell in one[2])]
    if not told:
        return None
    groups: list[tuple[str, int]] = [("", 1)]
    for group, _, _ in told:
        same = group == groups[-1][0] and len(groups) > 1
        groups = [*groups[:-1], (group, groups[-1][1] + 1)] if same else [*groups, (group, 1)]
    rows = [[Cell(line.name), *(cells[place] for _, _, cells in told)] for place, line in enumerate(lines)]
    return Table(["", *(head for _, head, _ in told)], rows, groups=groups)


def _at(*path: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda model: inside(model, *path)


def quality_table(runs: Sequence[FinishedRun], lines: Sequence[Line]) -> Table | None:
    columns = []
    several = len({data for run in runs for data in data_sets(run.found)}) > 1
    for data, split, metrics in _splits(runs):
        group = f"{named(data)}, {named(split)}" if several else named(split)
        for metric in metrics[:2]:
            columns.append((group, titled(metric), _scores(lines, data, split, metric)))
        same, sure = (_at("quality", data, split, key) for key in ("agreement", "calibration_error"))
        columns.append((group, "same as teacher", column(lines, same, percent)))
        columns.append((group, "calibration error", column(lines, sure, percent, more=False)))
    return as_table(lines, columns)


def _splits(runs: Sequence[FinishedRun]) -> list[tuple[str, str, list[str]]]:
    """Data set, split that is quoted, metrics."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for data in data_sets(run.found):
            for split in quoted_splits(run.found, data):
                found.setdefault((data, split), metrics_of(run.found, data))
    return [(data, split, metrics) for (data, split), metrics in found.items()]


def _scores(lines: Sequence[Line], data: str, split: str, metric: str) -> list[Cell]:
    told = in_its_unit(metric)

    def note(model: Mapping[str, Any]) -> str:
        ends = interval(model, data, split, metric)
        return f"{told(ends[0])} to {told(ends[1])}" if ends else ""

    return column(
        lines,
        _at("quality", data, split, metric),
        told,
        note,
        more=metric not in PLAIN,
        words=lambda model: score(model, data, split, metric),
    )


def cost_table(lines: Sequence[Line]) -> Table | None:
    columns = [
        ("size", "parameters", column(lines, _at("parameters"), parameters, _parts, more=False)),
        ("size", "MB", column(lines, _at("bytes"), megabytes, more=False)),
    ]
    written = {one: named(one) for one in searches({line.name: line.model for line in lines})}
    for runtime, group in {**RUNTIMES, **written}.items():
        columns += [(group, head, cells) for head, cells in _speed_columns(lines, runtime)]
    faster = column(lines, _at("times_faster"), lambda value: NOTHING if number(value) is None else f"{short(value)}×")
    return as_table(lines, [*columns, ("", "times faster", faster)])


def _speed_columns(lines: Sequence[Line], runtime: str) -> list[tuple[str, list[Cell]]]:
    def slowest(model: Mapping[str, Any]) -> str:
        value = inside(model, "speed", runtime, "latency_p95_ms")
        return f"95 % in {short(value)}" if number(value) is not None else ""

    def batch(model: Mapping[str, Any]) -> str:
        value = inside(model, "speed", runtime, "best_batch")
        return f"batch {count(value)}" if number(value) is not None else ""

    return [
        ("ms for one", column(lines, _at("speed", runtime, "latency_ms"), short, slowest, more=False)),
        ("a second", column(lines, lambda model: per_second(model, runtime), short)),
        ("at best", column(lines, _at("speed", runtime, "best_examples_per_second"), short, batch)),
    ]


def _parts(model: Mapping[str, Any]) -> str:
    """The embeddings' share: it is what fewer layers do not make smaller."""
    held = inside(model, "parts", "embeddings")
    return f"embeddings {parameters(held)}" if number(held) and number(model.get("parameters")) else ""


def all_scores(runs: Sequence[FinishedRun], lines: Sequence[Line]) -> Table | None:
    """Every metric on every split, dev too."""
    columns = []
    for data in dict.fromkeys(data for run in runs for data in data_sets(run.found)):
        metrics = dict.fromkeys(metric for run in runs for metric in metrics_of(run.found, data))
        splits = dict.fromkeys(split for line in lines for split in within(line.model, "quality", data))
        for split in splits:
            group = f"{named(data)}, {named(split)}"
            columns += [(group, titled(metric), _scores(lines, data, split, metric)) for metric in metrics]
            columns.append((group, "rows", column(lines, _at("quality", data, split, "rows"), count, more=None)))
    return as_table(lines, columns)


@dataclass(frozen=True)
class Matrices:
    """Tables of one data set's classes, and a note where there are too many of them."""

    where: str
    note: str
    tables: list[Table]


def confusions(
    runs: Sequence[FinishedRun], lines: Sequence[Line], data: str, split: str, metric: str
) -> Matrices | None:
    every = labels_of(runs, data)
    blocks = {line.name: matrix(inside(line.model, "confusion", data, split), len(every)) for line in whole(lines)}
    classes = next((block.classes for block in blocks.values() if block), [])
    labels = [every[number] for number in classes]
    found = {name: block.rows for name, block in blocks.items() if block and block.classes == classes}
    kept, note = kept_classes(labels, list(found.values()), len(every))
    if max(len(seeds_of(run.found)) for run in runs) > 1:
        means = any(value and value % 1 for rows in found.values() for row in rows for value in row)
        note = f"{note} {'Means over seeds.' if means else 'Of one seed.'}".strip()
    tables = []
    for name, rows in found.items():
        sums = [sum(value or 0.0 for value in row) for row in rows]
        cells = [
            [
                Cell(named(labels[i])),
                *(Cell(_counted(rows[i][j]), shade=(rows[i][j] or 0.0) / (sums[i] or 1.0)) for j in kept),
            ]
            for i in kept
        ]
        tables.append(Table(["", *(named(labels[j]) for j in kept)], cells, name))
    return Matrices(f"{named(data)}, {named(split)}", note, tables) if tables else None


def whole(lines: Sequence[Line]) -> list[Line]:
    """Without the int8 forms, whose answers are nearly those of the models they were made from."""
    return [line for line in lines if not line.kind.endswith("int8")]


def _counted(value: float | None) -> str:
    """A count, or the mean of counts over seeds; blank where none, as most cells of a large table are."""
    return (
        "" if value == 0 else NOTHING if value is None else count(value) if value == round(value) else f"{value:,.1f}"
    )


def per_class(
    runs: Sequence[FinishedRun], lines: Sequence[Line], data: str, split: str, metric: str
) -> Matrices | None:
    told = [line for line in whole(lines) if isinstance(inside(line.model, "per_class", data, split), Mapping)]
    labels = list(dict.fromkeys(label for line in told for label in inside(line.model, "per_class", data, split)))
    columns: list[list[Cell]] = []
    for line in told:
        scores = [inside(line.model, "per_class", data, split, label) for label in labels]
        columns.append(
            [
                Cell(
                    percent(inside(one, "f1")),
                    f"{percent(inside(one, 'precision'))} / {percent(inside(one, 'recall'))}",
                )
                for one in scores
            ]
        )
    if not columns:
        return None
    sizes = [inside(told[0].model, "per_class", data, split, label, "rows") for label in labels]
    rows = [
        [Cell(named(label)), Cell(count(sizes[place])), *(cells[place] for cells in columns)]
        for place, label in enumerate(labels)
    ]
    table = Table(["", "rows", *(line.name for line in told)], rows)
    return Matrices(f"{named(data)}, {named(split)}", "", [table])


@dataclass(frozen=True)
class SoftTargets:
    where: str
    note: str
    table: Table
    nearest: str


def soft_targets(
    runs: Sequence[FinishedRun], lines: Sequence[Line], data: str, split: str, metric: str
) -> list[SoftTargets]:
    """What each teacher gives to every class, on average over the rows of each class."""
    every = labels_of(runs, data)
    found = []
    for line in lines:
        block = matrix(inside(line.model, "mean_probabilities", data, split), len(every))
        if line.kind != "teacher" or not block:
            continue
        labels, rows = [every[number] for number in block.classes], block.rows
        counted = matrix(inside(line.model, "confusion", data, split), len(every))
        kept, note = kept_classes(labels, [counted.rows] if counted else [], len(every))
        cells = [
            [Cell(named(labels[i])), *(Cell(percent(rows[i][j]), shade=rows[i][j] or 0.0) for j in kept)] for i in kept
        ]
        table = Table(["", *(named(labels[j]) for j in kept)], cells, line.name)
        found.append(SoftTargets(f"{named(data)}, {named(split)}", note, table, nearest_classes(rows, labels)))
    return found


def labels_of(runs: Sequence[FinishedRun], data: str) -> list[str]:
    found = [inside(run.found, "labels", data) for run in runs]
    return next(([str(label) for label in labels] for labels in found if isinstance(labels, list) and labels), [])


class Block(NamedTuple):
    """A square of numbers, and the classes that it is of: all, or of very many those with the most rows."""

    classes: list[int]
    rows: list[list[float | None]]


def matrix(found: Any, size: int) -> Block | None:
    """What was written down, or None where it is no square of the right size."""
    classes: Any = list(range(size))
    if isinstance(found, Mapping):
        found, classes = found.get("rows"), found.get("classes")
    known = [int(one) for one in classes if number(one) is not None] if isinstance(classes, list) else []
    if not known or not all(0 <= one < size for one in known) or len(known) != len(classes):
        return None
    rows = found if isinstance(found, list) and len(found) == len(known) else []
    if not rows or not all(isinstance(row, list) and len(row) == len(known) for row in rows):
        return None
    return Block(known, [[number(value) for value in row] for row in rows])


def kept_classes(labels: Sequence[str], found: Sequence[list[list[float | None]]], of: int) -> tuple[list[int], str]:
    """The classes that a matrix shows: all, or those with the most rows `of` so many."""
    everything = list(range(len(labels)))
    if len(labels) <= MOST_CLASSES:
        return everything, ""
    sizes = [sum(value or 0.0 for value in row) for row in found[0]] if found else [0.0] * len(labels)
    most = sorted(everything, key=lambda place: (-sizes[place], place))[:MOST_CLASSES]
    return sorted(most), f"The {MOST_CLASSES} classes with the most rows of {of}."


def grid_table(run: FinishedRun) -> Table | None:
    cells = run.found.get("grid")
    cells = [cell for cell in cells if isinstance(cell, Mapping)][:MOST_CELLS] if isinstance(cells, list) else []
    if not cells:
        return None
    paths = list(dict.fromkeys(path for cell in cells for path in cell if path != "dev"))
    rows = [
        [Cell(f"{place}"), *(Cell(named(cell.get(path, NOTHING))) for path in paths), Cell(percent(cell.get("dev"), 2))]
        for place, cell in enumerate(cells, 1)
    ]
    return Table(["", *(named(path) for path in paths), "dev"], rows)
