"""Finished forms of a student. One file is one export; its name is the word that users type: `potstill export DIR --to onnx`.

An export is a frozen dataclass with `export(student, out, rows)`: it writes a folder that `predict` and `measure` read,
checks it against PyTorch at once, and returns what it found. `rows` are examples to check, and later to calibrate, with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from potstill.models.student import Student

Rows = Sequence[tuple[str, str | None]]
"""Text and pair of each, in the form that the student's task has."""


@dataclass(frozen=True)
class Checked:
    """An exported file and how it compares with PyTorch."""

    file: Path
    difference: float  # largest
    agreement: float  # share of predictions that are the same
    of: str = "a logit"  # what differs
    rows: int | None = None  # that were compared; None: all that were given
    answers: int | None = None  # of them, those that were answered anew; None: all


class Export(Protocol):
    def export(self, student: Student, out: Path, rows: Rows) -> Checked: ...
