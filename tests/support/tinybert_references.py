"""TinyBERT's reference numbers: attention scores, states and predictions (Jiao et al., 2020, arXiv:1909.10351).

The authors average over padding too; `corrected_padding_left_out` is the definition that we keep to. It pools the pairs of
all texts, while ours averages each query first: the two agree text by text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from potstill.models.hooks import listen
from potstill.plugins.methods.tinybert import TinyBert
from potstill.signals import Signals, View, Wants
from potstill.training import losses
from tests.support.references import Case, Checks, batch_of, close, tensor, value


def layer_terms(student: Signals, teacher: Signals, real: Tensor) -> dict[str, Tensor]:
    """What the method says of each text alone, averaged over all: scores over pairs of real tokens, states over real tokens."""
    each: dict[str, list[Tensor]] = {}
    for row in range(len(real)):
        view = View({}, real[row : row + 1], torch.zeros(1, 2, dtype=torch.long))
        batch = replace(batch_of(None, 1), student=view, counts={"tokens": int(real[row].sum())})
        one, other = (
            Signals(hidden=side.hidden[row : row + 1], scores=side.scores[row : row + 1]) for side in (student, teacher)
        )
        for name, term in TinyBert(prediction=0.0).losses(one, other, batch).items():
            each.setdefault(name, []).append(term.mean(batch.counts))
    tokens = real.sum(1)
    weights = {"attention": tokens.square(), "hidden": tokens, "embedding": tokens}
    return {name: (torch.stack(found) * weights[name]).sum() / weights[name].sum() for name, found in each.items()}


def close_to_corrected(found: dict[str, Tensor], expected: dict[str, Any]) -> None:
    for name, each in found.items():
        close(each, expected[f"{name}_loss"])


def check_layers(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    real = tensor(inputs["attention_mask"]).bool()
    student = tensor(inputs["student_attention_scores"]).transpose(0, 1)
    heard = inputs["teacher_attention_scores"]
    teacher = torch.stack([tensor(heard[str(layer)]) for layer in expected["attention_teacher_index_zero_based"]], 1)
    theirs = expected["states_teacher_index_embedding_is_0"]
    states = tensor(inputs["teacher_states"]["0"]).new_tensor(
        [inputs["teacher_states"][str(layer)] for layer in theirs]
    )
    ours = F.linear(
        tensor(inputs["student_states"]), tensor(inputs["fit_dense_weight"]), tensor(inputs["fit_dense_bias"])
    )
    heard_by = (
        Signals(hidden=ours.transpose(0, 1), scores=student),
        Signals(hidden=states.transpose(0, 1), scores=teacher),
    )
    close_to_corrected(layer_terms(*heard_by, real), expected["corrected_padding_left_out"])


def check_prediction(case: Case) -> None:
    """The authors divide by the number of classes too, and leave out T²."""
    student, teacher = (tensor(case["inputs"][f"{side}_logits"]) for side in ("student", "teacher"))
    temperature = case["settings"]["T"]
    entropy = torch.distributions.Categorical(logits=teacher / temperature).entropy()
    crossed = losses.soft_targets(student, teacher, temperature) / temperature**2 + entropy
    corrected = case["expected"]["corrected"]
    close(crossed.mean(), corrected["batchmean"])
    close(crossed.mean() * temperature**2, corrected["batchmean_times_T2"])
    close(crossed.mean() / student.shape[1], case["expected"]["soft_cross_entropy"])
    method, batch = TinyBert(layers=0.0, temperature=temperature), batch_of(None, len(student))
    term = value(method.losses(Signals(logits=student), Signals(logits=teacher), batch), "prediction", batch)
    close(term + (temperature**2 * entropy).mean(), corrected["batchmean_times_T2"])


def check_regression(case: Case) -> None:
    student, teacher = (tensor(case["inputs"][f"{side}_logits"]) for side in ("student", "teacher"))
    close(losses.squared_distance(student, teacher).mean(), case["expected"]["corrected_mse_to_teacher"])


def check_layer_map(case: Case) -> None:
    ours, theirs = case["settings"]["student_layers"], case["settings"]["teacher_layers"]
    expected = case["expected"]["teacher_layer_one_based"]
    (read, *of_student), (embeddings, *of_teacher) = (wants.hidden for wants in TinyBert().wants(ours, theirs))
    assert (read, embeddings, of_student, of_teacher) == (0, 0, [*range(1, ours + 1)], expected)


def check_whole_model(case: Case) -> None:
    """What `listen` reads in transformers' own networks with the case's weights."""
    inputs, settings = case["inputs"], case["settings"]
    given = {name: torch.tensor(inputs[name]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    real = given["attention_mask"].bool()
    layers = settings["teacher_layers"], settings["student_layers"]
    theirs = [layer * layers[0] // layers[1] for layer in range(layers[1] + 1)]
    heard = {}
    for side, count, wanted in (("teacher", layers[0], theirs), ("student", layers[1], [*range(layers[1] + 1)])):
        model = bert(settings, inputs[f"{side}_weights"], settings[f"{side}_width"], count)
        view = View(given, real, torch.tensor([[row, 0] for row in range(len(real))]))
        with torch.no_grad():
            heard[side] = listen(model, view, Wants(logits=True, hidden=tuple(wanted), scores=tuple(wanted[1:])))
        close(heard[side].logits, case["expected"][f"{side}_logits_without_relu_as_in_transformers"])
    weights = inputs["student_weights"]
    ours = F.linear(heard["student"].hidden, tensor(weights["fit_dense.weight"]), tensor(weights["fit_dense.bias"]))
    found = layer_terms(replace(heard["student"], hidden=ours), heard["teacher"], real)
    close_to_corrected(found, case["expected"]["corrected_padding_left_out"])


def bert(settings: dict[str, Any], weights: dict[str, Any], width: int, layers: int) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=settings["vocab_size"],
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=settings["heads"],
        intermediate_size=2 * width,
        max_position_embeddings=settings["max_position_embeddings"],
        layer_norm_eps=settings["layer_norm_eps"],
        num_labels=len(weights["classifier.bias"]),
    )
    model: BertForSequenceClassification = BertForSequenceClassification(config).double().eval()
    model.load_state_dict(
        {name: tensor(value) for name, value in weights.items() if not name.startswith("fit_dense")}, strict=True
    )
    return model


TINYBERT: Checks = {
    "tinybert": {
        "transformer_layers": check_layers,
        "prediction": check_prediction,
        "prediction_regression": check_regression,
        "layer_map": check_layer_map,
        "whole_model": check_whole_model,
    }
}
