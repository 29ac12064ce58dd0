"""ONNX with weights of eight bits, for ONNX Runtime: a quarter of the bytes, and faster on most processors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.inference.export_types import Checked, Rows
from potstill.inference.onnx_check import compare
from potstill.models.onnx.quantizing import quantize
from potstill.models.onnx.writing import write_config_and_tokenizer, write_onnx
from potstill.models.student import Student
from potstill.system.scratch import scratch_folder


@dataclass(frozen=True)
class Int8:
    """Dynamic quantisation: weights in eight bits with a scale per channel, the embedding table with one per row."""

    embeddings: bool = True

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        out.mkdir(parents=True, exist_ok=True)
        with scratch_folder() as place:
            quantize(write_onnx(student, place), out / "model.onnx", self.embeddings)
        write_config_and_tokenizer(student, out)
        return compare(student, out / "model.onnx", rows)
