"""ONNX with weights of eight bits, for ONNX Runtime: a quarter of the bytes, and faster on most processors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potstill.inference.export_types import Checked, Rows
from potstill.models.student import Student
from potstill.plugins.exports.onnx import compare, describe, write
from potstill.system.scratch import scratch_folder


@dataclass(frozen=True)
class Int8:
    """Weights per channel and the embedding table per row in eight bits, activations as they come.

    Weights of products keep to seven of the bits (`reduce_range`): on processors without VNNI, sums of two products of
    eight-bit numbers would overflow and be cut off without a word.
    """

    embeddings: bool = True

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        out.mkdir(parents=True, exist_ok=True)
        with scratch_folder() as place:
            quantize(write(student, place), out / "model.onnx", self.embeddings)
        describe(student, out)
        return compare(student, out / "model.onnx", rows)


def quantize(plain: Path, file: Path, embeddings: bool = True) -> None:
    """The eight-bit form of a float32 ONNX file."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(plain))
    del model.graph.value_info[:]  # shapes that the quantizer takes for its own and then contradicts
    if embeddings:
        quantize_tables(model)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice to preprocess images
    try:
        quantize_dynamic(
            model,
            str(file),
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm", "LSTM"],
        )
    finally:
        logging.disable(before)


def quantize_tables(model: Any) -> None:
    """Every table that rows are looked up in: eight bits and a scale per row. The quantizer would give the whole table one
    scale, and its largest number would decide the precision of all."""
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    tables = {one.name: one for one in graph.initializer if len(one.dims) == 2 and one.dims[0] > 1}
    floats = {name for name, one in tables.items() if one.data_type == onnx.TensorProto.FLOAT}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in floats & set(node.input):
            readers.setdefault(name, []).append(node)
    for name, nodes in readers.items():
        if not all(node.op_type == "Gather" and node.input[0] == name for node in nodes):
            continue
        values = numpy_helper.to_array(tables[name])
        scales = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12) / 127
        small = np.round(values / scales).astype(np.int8)
        graph.initializer.remove(tables[name])
        graph.initializer.append(numpy_helper.from_array(small, f"{name}_int8"))
        graph.initializer.append(numpy_helper.from_array(scales.astype(np.float32), f"{name}_scale"))
        for node in nodes:
            ids, row = node.input[1], node.output[0]
            place = list(graph.node).index(node)
            graph.node.remove(node)
            instead = [
                helper.make_node("Gather", [f"{name}_int8", ids], [f"{row}_int8"], axis=0),
                helper.make_node("Gather", [f"{name}_scale", ids], [f"{row}_scale"], axis=0),
                helper.make_node("Cast", [f"{row}_int8"], [f"{row}_float"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [f"{row}_float", f"{row}_scale"], [row]),
            ]
            for step, one in enumerate(instead):
                graph.node.insert(place + step, one)
