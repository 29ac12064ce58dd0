"""ONNX with weights of eight bits, for ONNX Runtime: a quarter of the bytes, and faster on most processors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.api import Checked, Export, Rows, Student, onnx_check, onnx_quantizing, onnx_writing, scratch


@dataclass(frozen=True)
class Int8(Export):
    """Dynamic quantisation: weights in eight bits with a scale per channel.

    embeddings: quantise the embedding table too, with a scale per row.
    """

    embeddings: bool = True

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        with scratch.scratch_folder() as folder:
            plain = onnx_writing.write_onnx(student, folder)
            file = onnx_quantizing.write_int8(student, plain, out, self.embeddings)
            return onnx_check.compare(student, file, rows, beside={"ONNX in float32": plain})
