"""ONNX with weights of four bits, for ONNX Runtime: the smallest file that needs no training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from potstill.api import Checked, Export, Rows, Student, onnx_check, onnx_four_bits, onnx_writing, scratch


@dataclass(frozen=True)
class Int4(Export):
    """Matrices in four bits, embedding tables in eight. Activations are not rounded: products are those of float32.

    block: so many weights share a scale; fewer are more exact and take more bytes.
    """

    block: Literal[16, 32, 64, 128] = 32

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        with scratch.scratch_folder() as folder:
            plain = onnx_writing.write_onnx(student, folder)
            file = onnx_four_bits.write_int4(student, plain, out, self.block)
            return onnx_check.compare(student, file, rows, beside={"ONNX in float32": plain})
