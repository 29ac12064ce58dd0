"""Matrices of four bits: how much a weight may change, which products become of four bits, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from potstill.errors import InputError
from potstill.models.onnx.four_bits import quantize_to_four_bits

WIDE, NARROW, BLOCK = 64, 48, 32


def gemm(path: Path, matrix: np.ndarray, bias: np.ndarray | None, **options: float) -> Path:
    """out = x · matrix + bias, with the options of ONNX's Gemm."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDE])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", NARROW])
    arrays = {"matrix": matrix, **({} if bias is None else {"bias": bias})}
    node = helper.make_node("Gemm", ["x", *arrays], ["out"], name="gemm", **options)
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "gemm", [x], [out], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_weight_changes_by_at_most_a_step_of_its_block(turned: int, with_bias: bool, tmp_path: Path) -> None:
    """The identity as input shows the matrix. A step is an eighth of the largest weight of a block of 32 in a column."""
    random = np.random.default_rng(0)
    matrix = random.normal(size=(WIDE, NARROW)).astype(np.float32)
    matrix[:BLOCK] *= 100  # so that one scale for a column would lose the second block
    bias = random.normal(size=NARROW).astype(np.float32) if with_bias else None
    stored = np.ascontiguousarray(matrix.T) if turned else matrix
    file = gemm(tmp_path / "plain.onnx", stored, bias, transB=turned)
    quantize_to_four_bits(file, tmp_path / "out.onnx", BLOCK)
    model = onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits", *(["Add"] if with_bias else [])]
    assert sum(len(tensor.raw_data) for tensor in model.graph.initializer) < matrix.nbytes / 4
    session = InferenceSession(str(tmp_path / "out.onnx"))
    (found,) = session.run(None, {"x": np.eye(WIDE, dtype=np.float32)})
    found = found - (0 if bias is None else bias)
    blocks = np.abs(matrix).reshape(-1, BLOCK, NARROW).max(1).repeat(BLOCK, 0)
    wrong = np.abs(found - matrix) / (blocks / 8)
    assert 0.3 < wrong.max() <= 1.01 and np.median(wrong) < 0.5


@pytest.mark.parametrize("options", [{"alpha": 2.0}, {"beta": 0.5}])
def test_a_product_that_is_scaled_stays_as_it_is(options: dict[str, float], tmp_path: Path) -> None:
    matrix = np.ones((WIDE, NARROW), np.float32)
    file = gemm(tmp_path / "plain.onnx", matrix, np.ones(NARROW, np.float32), **options)
    with pytest.raises(InputError, match="no matrix that ONNX Runtime stores in four bits; write --to int8"):
        quantize_to_four_bits(file, tmp_path / "out.onnx", BLOCK)
    assert not (tmp_path / "out.onnx").exists()


def test_an_onnx_runtime_without_four_bits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", None)
    file = gemm(tmp_path / "plain.onnx", np.ones((WIDE, NARROW), np.float32), None)
    with pytest.raises(InputError, match=r"cannot write four bits .* or --to int8"):
        quantize_to_four_bits(file, tmp_path / "out.onnx", BLOCK)


def test_other_libraries_stay_silent(tmp_path: Path) -> None:
    """Importing the quantizer sets up logging for the whole process; that is undone."""
    gemm(tmp_path / "plain.onnx", np.ones((WIDE, NARROW), np.float32), None)
    code = """
import logging
from pathlib import Path
from potstill.models.onnx.four_bits import quantize_to_four_bits
before = logging.root.handlers[:], logging.root.level
quantize_to_four_bits(Path("plain.onnx"), Path("out.onnx"), 32)
assert (logging.root.handlers, logging.root.level) == before, logging.root.handlers
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
