"""ONNX files with matrices of four bits, for the operator MatMulNBits of ONNX Runtime: weights alone are rounded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from potstill.errors import InputError
from potstill.models.onnx.quantizing import quantize_embeddings
from potstill.models.onnx.writing import without_warnings, write_config_and_tokenizer
from potstill.models.student import Student


def write_int4(student: Student, plain: Path, out: Path, block: int) -> Path:
    """Write out/model.onnx from the student's float32 file, with config and tokenizer beside it; return the file."""
    out.mkdir(parents=True, exist_ok=True)
    quantize_to_four_bits(plain, out / "model.onnx", block)
    write_config_and_tokenizer(student, out)
    return out / "model.onnx"


def quantize_to_four_bits(float_file: Path, file: Path, block: int) -> None:
    """Write a float32 ONNX file again: matrices in four bits, with a scale for every `block` weights of a column.

    Embedding tables have eight bits and a scale per row. An LSTM, which has no such form, stays in float32.
    """
    import onnx

    quantizer_of = _quantizer()
    model = onnx.load(str(float_file))
    del model.graph.value_info[:]
    quantize_embeddings(model)
    _split_gemms(model.graph)
    with without_warnings():
        quantizer = quantizer_of(model, block_size=block, is_symmetric=True)
        quantizer.process()
    written = quantizer.model.model
    if not any(node.op_type == "MatMulNBits" for node in written.graph.node):
        raise InputError("the network has no matrix that ONNX Runtime stores in four bits; write --to int8")
    onnx.save(written, str(file))


def _quantizer() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        raise InputError(
            f"this ONNX Runtime cannot write four bits ({str(error)[:100]}); write pip install -U 'potstill[onnx]', or "
            "--to int8"
        ) from None
    finally:  # importing it makes every library tell on standard error what it does
        root.handlers[:] = handlers
        root.setLevel(level)
    return MatMulNBitsQuantizer


def _split_gemms(graph: Any) -> None:
    """Write Gemm with a constant matrix as MatMul and Add, in place: only MatMul has a form of four bits."""
    from onnx import helper, numpy_helper

    matrices = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = []
    replaced: set[str] = set()
    for node in graph.node:
        options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        scaled = options.get("alpha", 1.0) != 1 or options.get("beta", 1.0) != 1 or options.get("transA", 0)
        if node.op_type != "Gemm" or scaled or node.input[1] not in matrices:
            nodes.append(node)
            continue
        values = numpy_helper.to_array(matrices[node.input[1]])
        product, name = f"{node.output[0]}_product", f"{node.output[0]}_matrix"
        replaced.add(node.input[1])
        matrix = np.ascontiguousarray(values.T if options.get("transB", 0) else values)
        graph.initializer.append(numpy_helper.from_array(matrix, name))
        bias = list(node.input[2:3])
        nodes.append(
            helper.make_node("MatMul", [node.input[0], name], [product if bias else node.output[0]], name=product)
        )
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], [node.output[0]]))
    del graph.node[:]
    graph.node.extend(nodes)
    for name in replaced.difference(*(node.input for node in nodes)):
        graph.initializer.remove(matrices[name])
