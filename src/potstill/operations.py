"""Floating-point operations of networks on batches of known sizes.

A forward pass takes 2 · weights · tokens, where the weights are those of all linear maps (embeddings are looked up, not
multiplied), and for attention 4 · layers · tokens · length · width, since each token meets every token of its sequence
in the scores and in the sum. Training takes three times that: forward, by the input and by the weight. Tokens are padded
ones, since padding is multiplied too. Norms, activations, dropout and softmax count nothing.
"""

from __future__ import annotations

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from potstill.anatomy import in_head, layer_count, layers_path, width
from potstill.listening import end_of_attention
from potstill.shapes import Shapes
from potstill.signals import Wants
from potstill.training import Training, make_bridges, teacher_layers

EVERY_TOKEN = ("ForTokenClassification", "ForQuestionAnswering")  # heads that read all of them


def forward(model: PreTrainedModel, shapes: Shapes, wants: Wants | None = None) -> np.ndarray:
    """(batches,) of one pass. With `wants` as `listen` does it: where [CLS] alone is read, the last layer ends with it."""
    shortened = wants is not None and not wants.hidden and end_of_attention(model) is not None
    per_token, per_sequence = weights_passed(model, shortened)
    if type(model).__name__.endswith("ForImageClassification"):  # an image is one token, which attends to no other
        return np.asarray(2.0 * (per_token + per_sequence) * shapes.sequences)
    attention = 4 * layer_count(model) * width(model) * shapes.tokens * shapes.lengths
    return np.asarray(2.0 * (per_token * shapes.tokens + per_sequence * shapes.sequences) + attention)


def training_step(training: Training, shapes: Shapes) -> np.ndarray:
    """(batches,) of forward and backward; with the teacher's forward pass where it is asked live."""
    found = np.zeros(len(shapes))
    bridges = make_bridges(training)
    for number, (model, teacher) in enumerate(zip(training.models, training.teachers, strict=True)):
        which = np.flatnonzero(shapes.owners == number)
        mine = shapes.take(which)
        ours, theirs = training.method.wants(layer_count(model), teacher_layers(teacher, model))
        found[which] = 3 * forward(model, mine, ours)
        for name, weight in bridges.across.named_parameters():
            crossed = mine.tokens if name.startswith("hidden") else mine.sequences
            found[which] += 6 * weight.numel() * crossed
        live = theirs.per_token or (theirs.logits and training.sources[number].changes)
        if live and teacher.model is not None:
            found[which] += forward(teacher.model, mine, theirs)
    return found


def weights_passed(model: PreTrainedModel, shortened: bool) -> tuple[int, int]:
    """Weights of linear maps that every token passes, and those that one token of each sequence passes."""
    last = f"{layers_path(model)}.{layer_count(model) - 1}." if shortened else ""
    head_reads_all = type(model).__name__.endswith(EVERY_TOKEN)
    every = once = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM):  # one matrix by the input and one by the state, in each direction
            every += sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
        if isinstance(module, nn.Linear):
            after_attention = shortened and name.startswith(last) and not name.startswith(f"{last}attention.self")
            if after_attention or (in_head(model, name) and not head_reads_all):
                once += module.weight.numel()
            else:
                every += module.weight.numel()
    return every, once
