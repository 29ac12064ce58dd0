"""Quantization of an ONNX file: weights are stored as int8, activations are rounded with scales that are measured.

Dynamic: the scales are those of the batch, measured as it comes. Static: those of calibration texts, measured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from potstill.models.onnx.writing import without_warnings, write_config_and_tokenizer
from potstill.models.student import Student

PRODUCTS = ["MatMul", "Gemm"]
Batches = Iterable[Mapping[str, np.ndarray]]
"""Inputs by name, (batch, tokens)."""


def write_int8(
    student: Student, plain: Path, out: Path, embeddings: bool = True, calibration: Batches | None = None
) -> Path:
    """Write out/model.onnx with weights of eight bits, from the student's float32 file; return the file.

    Config and tokenizer are beside it. `calibration`: batches for static quantization; None: dynamic.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "model.onnx"
    if calibration is None:
        quantize(plain, file, embeddings)
    else:
        quantize_statically(plain, file, calibration, embeddings)
    write_config_and_tokenizer(student, out)
    return file


def quantize(float_file: Path, int8_file: Path, embeddings: bool = True) -> None:
    """Write the dynamic int8 form of a float32 ONNX file."""
    _quantize_dynamically(_prepared(float_file, embeddings), int8_file, [*PRODUCTS, "LSTM"])


def quantize_statically(float_file: Path, int8_file: Path, calibration: Batches, embeddings: bool = True) -> None:
    """Write the static int8 form of a float32 ONNX file: activations have one scale for a tensor, from their extremes.

    LSTMs, which have no static form, are quantized dynamically.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(calibration)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {name: batch[name] for name in names}

    model = _prepared(float_file, embeddings)
    names = [node.name for node in model.graph.input]
    if any(node.op_type == "LSTM" for node in model.graph.node):
        _quantize_dynamically(model, int8_file, ["LSTM"])
        model = onnx.load(str(int8_file))
    with without_warnings():
        quantize_static(
            model,
            str(int8_file),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=PRODUCTS,
            activation_type=QuantType.QUInt8,
            extra_options={"MatMulConstBOnly": True},  # products of two activations, in attention, lose too much
            **_weights(),
        )


def _prepared(float_file: Path, embeddings: bool) -> Any:
    import onnx

    model = onnx.load(str(float_file))
    del model.graph.value_info[:]  # stored shapes contradict those that the quantizer infers, and it would fail
    if embeddings:
        quantize_embeddings(model)
    return model


def _quantize_dynamically(model: Any, file: Path, kinds: list[str]) -> None:
    from onnxruntime.quantization import quantize_dynamic

    with without_warnings():
        quantize_dynamic(model, str(file), op_types_to_quantize=kinds, **_weights())


def _weights() -> dict[str, Any]:
    """Weights have a scale per channel and use seven of their bits: on processors without VNNI, sums of two products of
    eight-bit numbers would saturate silently."""
    from onnxruntime.quantization import QuantType

    return {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True}


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
