"""ONNX graphs of networks over word vectors, built node by node.

PyTorch's exporter cannot trace packed sequences. ONNX's own LSTM takes the length of every text, so that padding
reaches no state, and ONNX Runtime can quantise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from torch import Tensor

from potstill.models.architectures.word_vectors import Bilstm, WordVectorModel
from potstill.models.onnx.exported import SEQUENTIAL

OPSET = 18


class _Graph:
    """Nodes in the order in which they are added; each is named after its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(
        self, kind: str, name: str, *inputs: str | np.ndarray, outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        names = [f"{name}.{i}" if isinstance(x, np.ndarray) else x for i, x in enumerate(inputs)]
        arrays = [(n, x) for n, x in zip(names, inputs, strict=True) if isinstance(x, np.ndarray)]
        self.constants += [numpy_helper.from_array(np.ascontiguousarray(array), n) for n, array in arrays]
        self.nodes.append(helper.make_node(kind, names, outputs or [name], name=name, **attributes))
        return name


def make_graph(model: WordVectorModel) -> ModelProto:
    """Map input_ids, attention_mask and, for pairs, token_type_ids, all (batch, tokens), to logits (batch, classes)."""
    graph = _Graph()
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if model.config.pairs else [])]
    # one more column, so that there is a token to look up if all texts are empty
    padding = np.array(model.config.pad_token_id or 0)
    ids = graph.add("Pad", "padded", "input_ids", _integers(0, 0, 0, 1), padding)
    lengths = graph.add("ReduceSum", "lengths", "attention_mask", _integers(1), keepdims=0)
    if model.config.pairs:
        ids, lengths = _split_pairs(graph, ids, lengths)
    recurrent = isinstance(model.encoder, Bilstm)
    features = (_lstm if recurrent else _mean)(graph, model.encoder, ids, lengths)
    if model.config.pairs:
        graph.add("Split", "both", features, outputs=["a", "b"], axis=0, num_outputs=2)
        product, difference = graph.add("Mul", "product", "a", "b"), graph.add("Sub", "difference", "a", "b")
        distance = graph.add("Abs", "distance", difference)
        features = graph.add("Concat", "features", "a", "b", product, distance, axis=1)
    dense = graph.add("Gemm", "dense", features, _array(model.dense.weight), _array(model.dense.bias), transB=1)
    hidden = graph.add("Relu", "hidden", dense)
    graph.add("Gemm", "logits", hidden, _array(model.out.weight), _array(model.out.bias), transB=1)
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            model.config.model_type,
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", model.config.num_labels])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    if recurrent:
        helper.set_model_props(proto, {SEQUENTIAL: "LSTM"})
    checker.check_model(proto)
    return proto


def _split_pairs(graph: _Graph, ids: str, whole: str) -> tuple[str, str]:
    """All first texts, then all second texts, as `word_vectors.split_pairs` does it."""
    real = graph.add("Mul", "second_real", "attention_mask", "token_type_ids")
    second = graph.add("ReduceSum", "second_lengths", real, _integers(1), keepdims=0)
    first = graph.add("Sub", "first_lengths", whole, second)
    width = graph.add("Squeeze", "width", graph.add("Shape", "width_shape", ids, start=1, end=2))
    columns = graph.add("Range", "columns", np.array(0), width, np.array(1))
    places = graph.add("Add", "places", graph.add("Unsqueeze", "begins", first, _integers(1)), columns)
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
    weights, states, first_bias, second_bias = (
        np.stack([_gates(getattr(lstm, f"{name}_l0{end}")) for end in ("", "_reverse")])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    biases = np.concatenate([first_bias, second_bias], 1)
    options = {"direction": "bidirectional", "hidden_size": lstm.hidden_size}
    graph.add("LSTM", "lstm", vectors, weights, states, biases, some, outputs=["", "last_states"], **options)
    turned = graph.add("Transpose", "states_by_text", "last_states", perm=[1, 0, 2])
    flat = graph.add("Reshape", "states", turned, _integers(-1, 2 * lstm.hidden_size))
    there = graph.add("Cast", "there", graph.add("Greater", "not_empty", lengths, np.array(0)), to=TensorProto.FLOAT)
    return graph.add("Mul", "text_vectors", flat, graph.add("Unsqueeze", "there_column", there, _integers(1)))


def _mean(graph: _Graph, encoder: Any, ids: str, lengths: str) -> str:
    """(texts, width): the product with 1 / length at each token of the text and 0 at padding."""
    vectors = graph.add("Gather", "vectors", _array(encoder.embeddings.weight), ids, axis=0)
    count = graph.add("Squeeze", "token_count", graph.add("Shape", "token_shape", ids, start=1, end=2))
    places = graph.add("Range", "token_places", np.array(0), count, np.array(1))
    column = graph.add("Unsqueeze", "length_column", lengths, _integers(1))
    real = graph.add("Cast", "real", graph.add("Less", "inside_text", places, column), to=TensorProto.FLOAT)
    some = graph.add("Cast", "some", graph.add("Max", "at_least_one", column, np.array(1)), to=TensorProto.FLOAT)
    shares = graph.add("Unsqueeze", "shares", graph.add("Div", "flat_shares", real, some), _integers(1))
    return graph.add("Squeeze", "text_vectors", graph.add("MatMul", "means", shares, vectors), _integers(1))


def _gates(weight: Tensor) -> np.ndarray:
    """Reorder the gates: PyTorch has input, forget, cell, output; ONNX has input, output, forget, cell."""
    i, f, c, o = np.split(_array(weight), 4)
    return np.concatenate([i, o, f, c])


def _array(weight: Tensor) -> np.ndarray:
    return np.asarray(weight.detach())


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
