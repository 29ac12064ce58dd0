"""The graphs of networks over word vectors, written node by node.

The exporter of PyTorch cannot follow packed sequences. ONNX's own LSTM takes the length of every text, so that padding
reaches no state, and ONNX Runtime has an eight-bit form of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from torch import Tensor

from potstill.models.architectures.word_vectors import Bilstm, OverWords

OPSET = 18


class _Graph:
    """Nodes in the order in which they are added; each is named by its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, kind: str, name: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        given = [one if isinstance(one, str) else self.constant(f"{name}.{i}", one) for i, one in enumerate(inputs)]
        self.nodes.append(helper.make_node(kind, given, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name


def write_graph(model: OverWords, file: Path) -> None:
    """logits (batch, classes) of input_ids, attention_mask and, for pairs, token_type_ids, all (batch, tokens)."""
    graph = _Graph()
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if model.config.pairs else [])]
    # one more column: where all texts are empty there is still one to look up
    padding = np.array(model.config.pad_token_id or 0)
    ids = graph.add("Pad", "padded", "input_ids", _numbers(0, 0, 0, 1), padding)
    lengths = graph.add("ReduceSum", "lengths", "attention_mask", _numbers(1), keepdims=0)
    if model.config.pairs:
        ids, lengths = _separated(graph, ids, lengths)
    encode = _lstm if isinstance(model.encoder, Bilstm) else _mean
    features = encode(graph, model.encoder, ids, lengths)
    if model.config.pairs:
        graph.nodes.append(helper.make_node("Split", [features], ["a", "b"], name="both", axis=0, num_outputs=2))
        product, apart = graph.add("Mul", "product", "a", "b"), graph.add("Sub", "apart", "a", "b")
        features = graph.add("Concat", "features", "a", "b", product, graph.add("Abs", "distance", apart), axis=1)
    dense = graph.add("Gemm", "dense", features, _array(model.dense.weight), _array(model.dense.bias), transB=1)
    hidden = graph.add("Relu", "hidden", dense)
    graph.add("Gemm", "logits", hidden, _array(model.out.weight), _array(model.out.bias), transB=1)
    made = helper.make_graph(
        graph.nodes,
        model.config.model_type,
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", model.config.num_labels])],
        list(graph.constants.values()),
    )
    written = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    checker.check_model(written)
    save(written, str(file))


def _separated(graph: _Graph, ids: str, whole: str) -> tuple[str, str]:
    """All first texts, then all second ones, as `recurrent.separated` does it."""
    real = graph.add("Mul", "second_real", "attention_mask", "token_type_ids")
    second = graph.add("ReduceSum", "second_lengths", real, _numbers(1), keepdims=0)
    first = graph.add("Sub", "first_lengths", whole, second)
    width = graph.add("Squeeze", "width", graph.add("Shape", "width_shape", ids, start=1, end=2))
    columns = graph.add("Range", "columns", np.array(0), width, np.array(1))
    places = graph.add("Add", "places", graph.add("Unsqueeze", "begins", first, _numbers(1)), columns)
    last = graph.add("Sub", "last", width, np.array(1))
    behind = graph.add("GatherElements", "behind", ids, graph.add("Min", "inside", places, last), axis=1)
    texts = graph.add("Concat", "texts", ids, behind, axis=0)
    return texts, graph.add("Concat", "text_lengths", first, second, axis=0)


def _lstm(graph: _Graph, encoder: Any, ids: str, lengths: str) -> str:
    """(texts, 2 * hidden)"""
    turned = graph.add("Transpose", "ids_by_place", ids, perm=[1, 0])
    vectors = graph.add("Gather", "vectors", _array(encoder.embeddings.weight), turned, axis=0)
    some = graph.add("Cast", "some", graph.add("Max", "at_least_one", lengths, np.array(1)), to=TensorProto.INT32)
    lstm = encoder.lstm
    ends = ("", "_reverse")
    weights = np.stack([_gates(getattr(lstm, f"weight_ih_l0{end}")) for end in ends])
    states = np.stack([_gates(getattr(lstm, f"weight_hh_l0{end}")) for end in ends])
    biases = np.stack(
        [np.concatenate([_gates(getattr(lstm, f"bias_{kind}_l0{end}")) for kind in ("ih", "hh")]) for end in ends]
    )
    given = [graph.constant(f"lstm.{name}", value) for name, value in (("W", weights), ("R", states), ("B", biases))]
    graph.nodes.append(
        helper.make_node(
            "LSTM",
            [vectors, *given, some],
            ["", "last_states"],
            name="lstm",
            direction="bidirectional",
            hidden_size=lstm.hidden_size,
        )
    )
    turned = graph.add("Transpose", "states_by_text", "last_states", perm=[1, 0, 2])
    flat = graph.add("Reshape", "states", turned, _numbers(-1, 2 * lstm.hidden_size))
    there = graph.add("Cast", "there", graph.add("Greater", "not_empty", lengths, np.array(0)), to=TensorProto.FLOAT)
    return graph.add("Mul", "text_vectors", flat, graph.add("Unsqueeze", "there_column", there, _numbers(1)))


def _mean(graph: _Graph, encoder: Any, ids: str, lengths: str) -> str:
    """(texts, width): a product with 1 / length at each token of the text and 0 at padding."""
    vectors = graph.add("Gather", "vectors", _array(encoder.embeddings.weight), ids, axis=0)
    count = graph.add("Squeeze", "token_count", graph.add("Shape", "token_shape", ids, start=1, end=2))
    places = graph.add("Range", "token_places", np.array(0), count, np.array(1))
    column = graph.add("Unsqueeze", "length_column", lengths, _numbers(1))
    real = graph.add("Cast", "real", graph.add("Less", "inside_text", places, column), to=TensorProto.FLOAT)
    some = graph.add("Cast", "some", graph.add("Max", "at_least_one", column, np.array(1)), to=TensorProto.FLOAT)
    shares = graph.add("Unsqueeze", "shares", graph.add("Div", "flat_shares", real, some), _numbers(1))
    return graph.add("Squeeze", "text_vectors", graph.add("MatMul", "means", shares, vectors), _numbers(1))


def _gates(weight: Tensor) -> np.ndarray:
    """PyTorch keeps a cell's gates as input, forget, cell, output; ONNX as input, output, forget, cell."""
    i, f, c, o = np.split(_array(weight), 4)
    return np.concatenate([i, o, f, c])


def _array(weight: Tensor) -> np.ndarray:
    found: np.ndarray = weight.detach().numpy()
    return found


def _numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
