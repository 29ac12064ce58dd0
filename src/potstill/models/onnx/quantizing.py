"""Dynamic quantisation of an ONNX file: weights are stored as int8, activations are quantised as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from potstill.models.onnx.writing import without_warnings, write_config_and_tokenizer
from potstill.models.student import Student


def write_int8(student: Student, plain: Path, out: Path, embeddings: bool = True) -> Path:
    """Write out/model.onnx with weights of eight bits, from the student's float32 file; return the file.

    Config and tokenizer are beside it.
    """
    out.mkdir(parents=True, exist_ok=True)
    quantize(plain, out / "model.onnx", embeddings)
    write_config_and_tokenizer(student, out)
    return out / "model.onnx"


def quantize(float_file: Path, int8_file: Path, embeddings: bool = True) -> None:
    """Write the int8 form of a float32 ONNX file; weights have a scale per channel.

    Weights use seven of their bits (`reduce_range`): on processors without VNNI, sums of two products of eight-bit
    numbers would saturate silently.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(float_file))
    del model.graph.value_info[:]  # stored shapes contradict those that the quantizer infers, and it would fail
    if embeddings:
        quantize_embeddings(model)
    with without_warnings():
        quantize_dynamic(
            model,
            str(int8_file),
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm", "LSTM"],
        )


def quantize_embeddings(model: Any) -> None:
    """Quantise every embedding table in place, with a scale per row.

    ONNX Runtime's own quantizer has one scale for a table, so that its largest number decides the precision of all.
    """
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    tables = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2 and tensor.dims[0] > 1}
    floats = {name for name, tensor in tables.items() if tensor.data_type == onnx.TensorProto.FLOAT}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in floats & set(node.input):
            readers.setdefault(name, []).append(node)
    for name, nodes in readers.items():
        if not all(node.op_type == "Gather" and node.input[0] == name for node in nodes):
            continue
        values = numpy_helper.to_array(tables[name])
        scales = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12) / 127
        rounded = np.round(values / scales).astype(np.int8)
        graph.initializer.remove(tables[name])
        graph.initializer.append(numpy_helper.from_array(rounded, f"{name}_int8"))
        graph.initializer.append(numpy_helper.from_array(scales.astype(np.float32), f"{name}_scale"))
        for node in nodes:
            ids, row = node.input[1], node.output[0]
            position = list(graph.node).index(node)
            graph.node.remove(node)
            replacement = [
                helper.make_node("Gather", [f"{name}_int8", ids], [f"{row}_int8"], axis=0),
                helper.make_node("Gather", [f"{name}_scale", ids], [f"{row}_scale"], axis=0),
                helper.make_node("Cast", [f"{row}_int8"], [f"{row}_float"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [f"{row}_float", f"{row}_scale"], [row]),
            ]
            for step, new_node in enumerate(replacement):
                graph.node.insert(position + step, new_node)
