"""Numbers to be predicted are learned in units of their spread, around their mean, whatever unit the rows have.

While it trains, a model's last layer gives (y − mean) / sd, and labels and the teacher's numbers are turned into that. Outside
of the training the two factors lie in that layer's weights, so that a saved student answers in the unit of the rows with
plain transformers. Mean and deviation are those of the labelled training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from potstill.data.examples import Examples
from potstill.tasks.task import Task


class Standard(NamedTuple):
    """y = mean + sd · what is learned."""

    mean: float
    sd: float


def standard_of(task: Task, model: PreTrainedModel, train: Examples, dev: Examples) -> Standard | None:
    """Of a task of numbers, from train's labels, or dev's where train has none. A head without a bias, as causal models
    have, cannot move its answers: its numbers are scaled to a mean square of 1 instead."""
    labelled = train.labelled_only if len(train.labelled_only) else dev.labelled_only
    if task.outcome != "value" or not len(labelled) or (layer := last_layer(model)) is None:
        return None
    numbers = np.asarray(task.golds(labelled), np.float64)
    mean = float(numbers.mean()) if layer.bias is not None else 0.0
    spread = float(np.sqrt(np.square(numbers - mean).mean()))
    return Standard(mean, spread if spread > 0 else 1.0)


def last_layer(model: PreTrainedModel) -> nn.Linear | None:
    """What gives the head's outputs: its last linear layer with as many."""
    inside = f"{model.base_model_prefix}."
    found = [
        part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == model.config.num_labels and not name.startswith(inside)
    ]
    return found[-1] if found else None


@torch.no_grad()
def to_users_unit(model: PreTrainedModel, standard: Standard) -> None:
    """The last layer gives what it gave, times the deviation, plus the mean."""
    layer = last_layer(model)
    assert layer is not None
    layer.weight.mul_(standard.sd)
    if layer.bias is not None:
        layer.bias.mul_(standard.sd).add_(standard.mean)


@torch.no_grad()
def to_standard_unit(model: PreTrainedModel, standard: Standard) -> None:
    """The way back."""
    layer = last_layer(model)
    assert layer is not None
    layer.weight.div_(standard.sd)
    if layer.bias is not None:
        layer.bias.sub_(standard.mean).div_(standard.sd)


@contextmanager
def in_users_unit(models: Sequence[PreTrainedModel], standards: Sequence[Standard | None]) -> Iterator[None]:
    """Inside, models that are in training answer as they will when it is over; after it, every bit is as it was."""
    changed = [(model, one) for model, one in zip(models, standards, strict=True) if one is not None]
    layers = [layer for model, _ in changed if (layer := last_layer(model)) is not None]
    kept = [[parameter.detach().clone() for parameter in layer.parameters()] for layer in layers]
    for model, one in changed:
        to_users_unit(model, one)
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, values in zip(layers, kept, strict=True):
                for parameter, value in zip(layer.parameters(), values, strict=True):
                    parameter.copy_(value)
