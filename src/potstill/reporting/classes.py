"""Tables of classes: confusion matrices, quality per class, and the mean probabilities that a teacher gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from potstill.measuring.measurements import TEACHER, BySplit, Matrix, Place, Scores, short_name
from potstill.measuring.run_folder import FinishedRun
from potstill.reporting.numbers import MISSING, count, percent
from potstill.reporting.sentences import nearest_classes
from potstill.reporting.tables import Cell, Line, Table

T = TypeVar("T")
MOST_CLASSES = 20  # of a matrix: more cannot be read


@dataclass(frozen=True)
class ClassTables:
    """Tables of the classes of one data set, with a note, such as that only the largest classes are shown."""

    where: str
    tables: list[Table]
    note: str = ""
    sentence: str = ""


def confusions(runs: Sequence[FinishedRun], lines: Sequence[Line], place: Place) -> ClassTables | None:
    """A confusion matrix per model, of those that cover the same classes."""
    labels = _labels(runs, place.data)
    matrices = {line.name: _covered(_at(line.model.confusion, place), labels) for line in without_int8(lines)}
    classes = next((matrix.classes for matrix in matrices.values() if matrix), None)
    if classes is None:
        return None
    found = {name: matrix.rows for name, matrix in matrices.items() if matrix and matrix.classes == classes}
    shown, note = largest_classes(classes, next(iter(found.values())), len(labels))
    if max(len(run.measurements.seeds) for run in runs) > 1:
        averaged = any(value and value % 1 for rows in found.values() for row in rows for value in row)
        note = f"{note} {'Means over seeds.' if averaged else 'Of one seed.'}".strip()
    names = [short_name(labels[label]) for label in classes]
    tables = []
    for name, rows in found.items():
        sums = [sum(value or 0.0 for value in row) or 1.0 for row in rows]
        cells = [
            [Cell(names[i]), *(Cell(_count(rows[i][j]), shade=(rows[i][j] or 0.0) / sums[i]) for j in shown)]
            for i in shown
        ]
        tables.append(Table(["", *(names[j] for j in shown)], cells, name))
    return ClassTables(_where(place), tables, note)


def per_class(lines: Sequence[Line], place: Place) -> ClassTables | None:
    """F1 of each class by model, with precision and recall."""
    measured = {line.name: scores for line in without_int8(lines) if (scores := _at(line.model.per_class, place))}
    if not measured:
        return None
    labels = list(dict.fromkeys(label for scores in measured.values() for label in scores))
    rows = next(iter(measured.values()))
    cells = [
        [
            Cell(short_name(label)),
            Cell(count(rows.get(label, {}).get("rows"))),
            *(_class_cell(scores.get(label, {})) for scores in measured.values()),
        ]
        for label in labels
    ]
    return ClassTables(_where(place), [Table(["", "rows", *measured], cells)])


def soft_targets(runs: Sequence[FinishedRun], lines: Sequence[Line], place: Place) -> list[ClassTables]:
    """The mean probability that each teacher gives to every class, over the rows of each class."""
    labels = _labels(runs, place.data)
    found = []
    for line in lines:
        matrix = _covered(_at(line.model.mean_probabilities, place), labels)
        if line.kind != TEACHER or matrix is None or matrix.classes is None:
            continue
        names, rows = [short_name(labels[label]) for label in matrix.classes], matrix.rows
        counts = _covered(_at(line.model.confusion, place), labels)
        shown, note = largest_classes(matrix.classes, counts.rows if counts else [], len(labels))
        cells = [[Cell(names[i]), *(Cell(percent(rows[i][j]), shade=rows[i][j] or 0.0) for j in shown)] for i in shown]
        table = Table(["", *(names[j] for j in shown)], cells, line.name)
        found.append(ClassTables(_where(place), [table], note, nearest_classes(rows, names)))
    return found


def without_int8(lines: Sequence[Line]) -> list[Line]:
    """Omit the int8 models, whose predictions are nearly those of the models they were made from."""
    return [line for line in lines if not line.kind.endswith("int8")]


def largest_classes(
    classes: Sequence[int], rows: Sequence[Sequence[float | None]], total: int
) -> tuple[list[int], str]:
    """Return the positions of the classes that a matrix shows: all, or the 20 with the most rows."""
    positions = list(range(len(classes)))
    if len(classes) <= MOST_CLASSES:
        return positions, ""
    sizes = [sum(value or 0.0 for value in row) for row in rows] or [0.0] * len(classes)
    largest = sorted(positions, key=lambda position: (-sizes[position], position))[:MOST_CLASSES]
    return sorted(largest), f"The {MOST_CLASSES} classes with the most rows, of {total}."


def _covered(matrix: Matrix | None, labels: Sequence[str]) -> Matrix | None:
    """Return a matrix with the classes it covers; None where it does not fit the labels."""
    if matrix is None:
        return None
    classes = list(range(len(matrix.rows))) if matrix.classes is None else matrix.classes
    whole = matrix.classes is not None or len(classes) == len(labels)
    return Matrix(matrix.rows, classes) if whole and all(0 <= label < len(labels) for label in classes) else None


def _class_cell(scores: Scores) -> Cell:
    f1, precision, recall = (percent(scores.get(key)) for key in ("f1", "precision", "recall"))
    return Cell(f1, note=f"{precision} / {recall}")


def _count(value: float | None) -> str:
    """A count, or the mean of counts over seeds; blank for zero, as most cells of a large matrix are."""
    if value is None or value == 0:
        return MISSING if value is None else ""
    return count(value) if value == round(value) else f"{value:,.1f}"


def _labels(runs: Sequence[FinishedRun], data: str) -> list[str]:
    return next((labels for run in runs if (labels := run.measurements.labels.get(data))), [])


def _at(values: BySplit[T], place: Place) -> T | None:
    return values.get(place.data, {}).get(place.split)


def _where(place: Place) -> str:
    return f"{short_name(place.data)}, {short_name(place.split)}"
