"""ONNX in float32, any batch and any length, for ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.api import Checked, Export, Rows, Student, TrainingError, onnx_check, onnx_writing

LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Onnx(Export):
    """The logits of PyTorch, to 1e-5."""

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        checked = onnx_check.compare(student, onnx_writing.write_onnx(student, out), rows)
        if checked.difference > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"the ONNX model differs from PyTorch by {checked.difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; "
                "use the student's own folder"
            )
        return checked
