"""The student's own folder with weights in float16: half of the bytes on disk, and float32 again once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.api import Checked, Export, Rows, Student, halves, networks, onnx_check


@dataclass(frozen=True)
class Float16(Export):
    """Weights are rounded to eleven significant bits. In memory they are float32, and as fast as before."""

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        networks.save_student(student, out)
        return onnx_check.compare(student, halves.store_halves(out), rows)
