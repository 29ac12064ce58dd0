"""Reads texts, labels and a teacher's answer out of one record. Errors do not say where it is: the caller knows that."""

from __future__ import annotations

import json
import math
from typing import Any

from potstill.data.columns import AnswerColumns, Columns
from potstill.data.formats.reading import LONGEST, clean_text, short_repr
from potstill.data.row import Label
from potstill.errors import InputError

Values = dict[str, object]
"""The values of a record by column name."""
Parts = tuple[str, str | None, Label | None]
"""Text, second text, label."""


def label_value(values: Values, columns: Columns) -> object:
    """Return the value of the only column that holds tags, answers or the right candidate."""
    return values.get(columns.label) if isinstance(columns.label, str) else None


def read_target(values: Values, column: str) -> str:
    """Return the target text; "" if it is empty, null or missing."""
    value = values.get(column)
    return "" if value is None or (isinstance(value, str) and not value.strip()) else read_text(values, column)


def read_text(values: Values, column: str | None) -> str:
    value = values.get(str(column))
    if isinstance(value, str):
        if len(value) > LONGEST:
            raise InputError(f"{column!r} has {len(value):,} characters, more than {LONGEST:,}; split the text")
        return clean_text(value)
    if column not in values:
        raise InputError(f"there is no {column!r}; write the text, or delete the row")
    raise InputError(f"{column!r} is {short_repr(value)}, not a text; write it in quotes, or delete the row")


def canonical(value: object) -> str:
    """Return a label as text: without the spaces around it, and a number as it is written by hand, 1.0 as 1."""
    if isinstance(value, str):
        return clean_text(value.strip())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise InputError(f"{short_repr(value)} is not a label; write a text or a number, or leave it empty")


def read_label(values: Values, columns: Columns) -> str | tuple[str, ...] | None:
    if isinstance(columns.label, tuple):
        return marked_labels(values, columns.label)
    value = label_value(values, columns)
    if isinstance(value, str) and columns.separator and value.strip():
        return tuple(canonical(part) for part in value.split(columns.separator) if part.strip())
    if isinstance(value, list):
        labels = tuple(canonical(part) for part in value)
        if "" in labels:
            raise InputError(f"one of the labels {short_repr(value)} is empty; write its name, or omit it")
        return labels
    return None if value is None else canonical(value) or None


def marked_labels(values: Values, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of the columns that hold 1; None if all are empty."""
    marks = {name: canonical("" if values.get(name) is None else values[name]).lower() for name in names}
    if not any(marks.values()):
        return None
    for name, mark in marks.items():
        if mark not in ("0", "1", "false", "true"):
            raise InputError(f"{name!r} is {short_repr(values.get(name))}; write 0 or 1 in a column per label")
    return tuple(name for name, mark in marks.items() if mark in ("1", "true"))


def read_answer(values: Values, answers: AnswerColumns) -> tuple[float, ...] | None:
    """Return the teacher's logits; for probabilities their logarithm, whose softmax gives the probabilities back."""
    cells = [values.get(name) for name in answers.columns]
    if all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells):
        return None
    try:
        parts = cells if answers.labels else json.loads(cells[0]) if isinstance(cells[0], str) else cells[0]
        numbers = tuple(map(finite, parts)) if isinstance(parts, list) else ()
        if not numbers:
            raise ValueError
    except (ValueError, TypeError, OverflowError, RecursionError):
        todo = "a list of finite numbers, such as [0.1, -2.3]" if answers.labels is None else "a finite number in each"
        content = short_repr(cells[0] if len(cells) == 1 else cells)
        raise InputError(f"{content} in {', '.join(answers.columns)[:200]} is not an answer; write {todo}") from None
    if not answers.are_probabilities:
        return numbers
    if min(numbers) < 0 or abs(math.fsum(numbers) - 1) > 1e-3:
        reason = f"the probabilities {short_repr(list(numbers))} are below 0 or do not sum to 1"
        raise InputError(f"{reason}; correct them, or call the column logits if that is what they are")
    return tuple(math.log(max(number, 1e-12)) for number in numbers)


def finite(cell: Any) -> float:
    if isinstance(cell, bool) or not math.isfinite(float(cell)):
        raise ValueError
    return float(cell)
