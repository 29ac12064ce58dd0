"""Floating-point operations of networks, from the sizes of their batches.

A forward pass takes 2 · weights · tokens, where the weights are those of all linear maps (embeddings are looked up, not
multiplied), and for attention 4 · layers · tokens · length · width: each token meets every token of its sequence in the
scores and in the weighted sum, and in a decoder those of the source as well. Training takes three times that: the forward
pass, and the gradients by input and by weight. Tokens include padding, which is multiplied too. Norms, activations, dropout
and softmax are not counted. The head of a masked language model passes only the tokens that it predicts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from potstill.models.anatomy import (
    encoder_layers,
    has_layers,
    in_head,
    layer_count,
    layers_path,
    shares_layers,
    stacks,
    stored_layers,
    width,
)
from potstill.models.architectures.cnn import PlacedConv
from potstill.models.compression.attention_heads import attentions
from potstill.models.hooks import end_of_attention
from potstill.models.packing import reads_places
from potstill.runs.planning.batches import Batches
from potstill.signals import Wants
from potstill.tasks.mask import SHARE
from potstill.training.setup import Training, make_projections

TOKEN_HEADS = ("ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")  # that read every token
# over the source
CROSS_ATTENTION = ("encoder_attn.k_proj", "encoder_attn.v_proj", "EncDecAttention.k", "EncDecAttention.v")


def forward(model: PreTrainedModel, batches: Batches, wants: Wants | None = None) -> np.ndarray:
    """(batches,) of one pass. With `wants`, as `listen` runs it: the last layer computes only [CLS] if only that is read."""
    if batches.targets.any() and model.config.is_encoder_decoder:
        return translation(model, batches)
    shortened = wants is not None and not wants.hidden and end_of_attention(model) is not None
    per_token, per_sequence = weights_passed(model, shortened)
    if type(model).__name__.endswith("ForImageClassification"):  # an image is one token without attention
        return np.asarray(2.0 * (per_token + per_sequence) * batches.sequences)
    if wants is not None and reads_places(model):  # its head computes nothing but what is read
        head = sum(weights for name, weights in matrices(model) if in_head(model, name))
        per_token -= head * (1 - SHARE * wants.logits)
    attention = 4 * attention_width(model) * batches.tokens * batches.lengths
    return np.asarray(2.0 * (per_token * batches.tokens + per_sequence * batches.sequences) + attention)


def attention_width(model: PreTrainedModel) -> int:
    """The width of all heads of all layers."""
    if (known := attentions(model) if has_layers(model) else None) is None:
        return layer_count(model) * width(model)
    return sum(place.heads * place.width for place in known)


def translation(model: PreTrainedModel, batches: Batches) -> np.ndarray:
    """(batches,) of one pass through encoder and decoder."""
    maps = list(matrices(model))
    over_source = sum(n for name, n in maps if "encoder" in name.split(".") or name.endswith(CROSS_ATTENTION))
    over_target = sum(n for _, n in maps) - over_source
    layers = [getattr(model.config, field) for field in stacks(model).values()] if has_layers(model) else [0, 0]
    t5 = hasattr(model.config, "d_kv")  # whose heads have a width of their own
    attention_width = model.config.num_heads * model.config.d_kv if t5 else width(model)
    target, source = batches.targets, batches.lengths - batches.targets
    pairs = layers[0] * source**2 + layers[1] * target**2 + max(layers[1], 1) * source * target  # an LSTM attends once
    linear = over_source * source + over_target * target
    return np.asarray(batches.sequences * (2.0 * linear + 4 * attention_width * pairs))


def matrices(model: PreTrainedModel) -> Iterator[tuple[str, int]]:
    """The names of all linear maps and their numbers of weights, as often as a token passes them."""
    if shares_layers(model):
        path, stored, used = layers_path(model), list(stored_layers(model)), list(encoder_layers(model))
        for place, layer in enumerate(stored):
            for name, weights in matrices_of(layer):
                yield f"{path}.{place}.{name}", weights * used.count(layer)
        yield from ((name, weights) for name, weights in matrices_of(model) if not name.startswith(f"{path}."))
    else:
        yield from matrices_of(model)


def matrices_of(network: nn.Module) -> Iterator[tuple[str, int]]:
    """The same where each is used once."""
    for name, module in network.named_modules():
        if isinstance(module, nn.LSTM):  # one matrix for the input and one for the state, per direction
            yield name, sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
        if isinstance(module, nn.Linear | Conv1D | nn.Conv1d):  # a convolution multiplies all its weights at each token
            yield name, module.weight.numel()
        if isinstance(module, PlacedConv):
            yield name, module.weight.numel() * module.places


def training_step(training: Training, batches: Batches) -> np.ndarray:
    """(batches,) of forward and backward passes, with the teacher's forward pass if it is asked live."""
    operations = np.zeros(len(batches))
    projections = make_projections(training)
    for number, (model, teacher) in enumerate(zip(training.models, training.teachers, strict=True)):
        which = np.flatnonzero(batches.data == number)
        of_data = batches.take(which)
        student_wants, teacher_wants = training.wants(number)
        operations[which] = 3 * forward(model, of_data, student_wants)
        for name, weight in projections.across.named_parameters():
            projected = of_data.tokens if name.startswith("hidden") else of_data.sequences
            operations[which] += 6 * weight.numel() * projected
        live = teacher_wants != Wants() and training.sources[number].needs_live_teacher(teacher_wants)
        if live and teacher.model is not None:
            operations[which] += forward(teacher.model, of_data, teacher_wants)
    return operations


def weights_passed(model: PreTrainedModel, shortened: bool) -> tuple[float, int]:
    """The weights of linear maps that every token passes, and those that one token of each sequence passes."""
    last = f"{layers_path(model)}.{layer_count(model) - 1}." if shortened else ""
    head_reads_all = type(model).__name__.endswith(TOKEN_HEADS) or model.can_generate()
    per_token, per_sequence = 0.0, 0
    for name, weights in matrices(model):
        after_attention = shortened and name.startswith(last) and not name.startswith(f"{last}attention.self")
        if after_attention or (in_head(model, name) and not head_reads_all):
            per_sequence += weights
        else:
            per_token += weights
    return per_token, per_sequence
