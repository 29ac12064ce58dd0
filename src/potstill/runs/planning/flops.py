"""Floating-point operations of networks on batches of known sizes.

A forward pass takes 2 · weights · tokens, where the weights are those of all linear maps (embeddings are looked up, not
multiplied), and for attention 4 · layers · tokens · length · width, since each token meets every token of its sequence
in the scores and in the sum; in a decoder it meets those of the source as well. Training takes three times that: forward,
by the input and by the weight. Tokens are padded ones, since padding is multiplied too. Norms, activations, dropout and
softmax count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from potstill.models.anatomy import has_layers, in_head, layer_count, layers_path, stacks, width
from potstill.models.hooks import end_of_attention
from potstill.runs.planning.batch_sizes import Shapes
from potstill.signals import Wants
from potstill.training.setup import Training, make_projections

EVERY_TOKEN = ("ForTokenClassification", "ForQuestionAnswering")  # heads that read all of them
CROSSING = ("encoder_attn.k_proj", "encoder_attn.v_proj", "EncDecAttention.k", "EncDecAttention.v")  # by the source


def forward(model: PreTrainedModel, shapes: Shapes, wants: Wants | None = None) -> np.ndarray:
    """(batches,) of one pass. With `wants` as `listen` does it: where [CLS] alone is read, the last layer ends with it."""
    if shapes.targets is not None and model.config.is_encoder_decoder:
        return translation(model, shapes.sequences, shapes.lengths - shapes.targets, shapes.targets)
    shortened = wants is not None and not wants.hidden and end_of_attention(model) is not None
    per_token, per_sequence = weights_passed(model, shortened)
    if type(model).__name__.endswith("ForImageClassification"):  # an image is one token, which attends to no other
        return np.asarray(2.0 * (per_token + per_sequence) * shapes.sequences)
    attention = 4 * layer_count(model) * width(model) * shapes.tokens * shapes.lengths
    return np.asarray(2.0 * (per_token * shapes.tokens + per_sequence * shapes.sequences) + attention)


def translation(model: PreTrainedModel, sequences: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(batches,) of one pass through encoder and decoder, from the tokens of each."""
    reading = writing = 0
    for name, weights in matrices(model):
        if "encoder" in name.split(".") or name.endswith(CROSSING):
            reading += weights
        else:
            writing += weights
    encoder, decoder = (
        (getattr(model.config, field) for field in stacks(model).values()) if has_layers(model) else (0, 0)
    )
    attending = (
        model.config.num_heads * model.config.d_kv if hasattr(model.config, "d_kv") else width(model)
    )  # T5's own
    met = encoder * source**2 + decoder * target**2 + max(decoder, 1) * source * target  # an LSTM attends once
    return np.asarray(sequences * (2.0 * (reading * source + writing * target) + 4 * attending * met))


def matrices(model: PreTrainedModel) -> Iterator[tuple[str, int]]:
    """Names of all linear maps, and how many weights each has."""
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM):  # one matrix by the input and one by the state, in each direction
            yield name, sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
        if isinstance(module, nn.Linear | Conv1D):
            yield name, module.weight.numel()


def training_step(training: Training, shapes: Shapes) -> np.ndarray:
    """(batches,) of forward and backward; with the teacher's forward pass where it is asked live."""
    found = np.zeros(len(shapes))
    projections = make_projections(training)
    for number, (model, teacher) in enumerate(zip(training.models, training.teachers, strict=True)):
        which = np.flatnonzero(shapes.owners == number)
        mine = shapes.take(which)
        ours, theirs = training.wants(number)
        found[which] = 3 * forward(model, mine, ours)
        for name, weight in projections.across.named_parameters():
            crossed = mine.tokens if name.startswith("hidden") else mine.sequences
            found[which] += 6 * weight.numel() * crossed
        live = theirs != Wants() and training.sources[number].needs_live_teacher(theirs)
        if live and teacher.model is not None:
            found[which] += forward(teacher.model, mine, theirs)
    return found


def weights_passed(model: PreTrainedModel, shortened: bool) -> tuple[int, int]:
    """Weights of linear maps that every token passes, and those that one token of each sequence passes."""
    last = f"{layers_path(model)}.{layer_count(model) - 1}." if shortened else ""
    head_reads_all = type(model).__name__.endswith(EVERY_TOKEN) or model.can_generate()
    every = once = 0
    for name, weights in matrices(model):
        after_attention = shortened and name.startswith(last) and not name.startswith(f"{last}attention.self")
        if after_attention or (in_head(model, name) and not head_reads_all):
            once += weights
        else:
            every += weights
    return every, once
