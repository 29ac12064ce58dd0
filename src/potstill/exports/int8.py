"""ONNX with weights of eight bits, for ONNX Runtime: a quarter of the bytes, and faster on most processors."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from potstill.exports import Checked
from potstill.exports.onnx import compare, describe, write
from potstill.students import Student


@dataclass(frozen=True)
class Int8:
    """Weights per channel and the embedding table in eight bits, activations as they come.

    Weights keep to seven of the bits (`reduce_range`): on processors without VNNI, sums of two products of eight-bit
    numbers would overflow and be cut off without a word.
    """

    embeddings: bool = True

    def export(self, student: Student, out: Path, texts: Sequence[str]) -> Checked:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out) as place:
            quantize(write(student, Path(place)), out / "model.onnx", self.embeddings)
        describe(student, out)
        return compare(student, out / "model.onnx", texts)


def quantize(plain: Path, file: Path, embeddings: bool = True) -> None:
    """The eight-bit form of a float32 ONNX file."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(plain))
    del model.graph.value_info[:]  # shapes that the quantizer takes for its own and then contradicts
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice to preprocess images
    try:
        quantize_dynamic(
            model,
            str(file),
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm", *(["Gather"] if embeddings else [])],
        )
    finally:
        logging.disable(before)
