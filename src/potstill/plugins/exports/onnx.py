"""ONNX in float32, any batch and any length, for ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.errors import TrainingError
from potstill.inference.export_types import Checked, Rows
from potstill.inference.onnx_check import compare
from potstill.models.onnx.writing import write_onnx
from potstill.models.student import Student

LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Onnx:
    """The same numbers as PyTorch, to 1e-5."""

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        file = write_onnx(student, out)
        checked = compare(student, file, rows)
        if checked.difference > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"as ONNX the model differs from PyTorch by {checked.difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; "
                "nothing is written, use the student's own folder"
            )
        return checked
