"""Regression targets are learned standardized, as (y − mean) / sd, in whatever unit the rows are.

During training the output layer predicts standardized values, and labels and the teacher's values are scaled in the same
way. Before and after it, mean and sd are folded into the weights of that layer, so a saved student predicts in the unit of
the rows with plain transformers. Mean and sd are those of the labelled training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from potstill.data.batches import TargetScale
from potstill.data.examples import Examples
from potstill.tasks.task import Task


def target_scale_of(task: Task, model: PreTrainedModel, train: Examples, dev: Examples) -> TargetScale | None:
    """Mean and sd of the labels of train, or of dev if train has none; None unless the task is a regression.

    An output layer without a bias, as in causal models, cannot shift its outputs: its mean is 0, and sd the root mean square.
    """
    labelled = train.labelled_only if len(train.labelled_only) else dev.labelled_only
    if task.outcome != "value" or not len(labelled) or (layer := output_layer(model)) is None:
        return None
    values = np.asarray(task.golds(labelled), np.float64)
    mean = float(values.mean()) if layer.bias is not None else 0.0
    sd = float(np.sqrt(np.square(values - mean).mean()))
    return TargetScale(mean, sd if sd > 0 else 1.0)


def output_layer(model: PreTrainedModel) -> nn.Linear | None:
    """The last linear layer of the head that has as many outputs as there are labels."""
    encoder = f"{model.base_model_prefix}."
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module.out_features == model.config.num_labels
        and not name.startswith(encoder)
    ]
    return layers[-1] if layers else None


@torch.no_grad()
def unscale_outputs(model: PreTrainedModel, scale: TargetScale) -> None:
    """Fold the scale into the output layer, which then predicts sd · output + mean."""
    layer = output_layer(model)
    assert layer is not None
    layer.weight.mul_(scale.sd)
    if layer.bias is not None:
        layer.bias.mul_(scale.sd).add_(scale.mean)


@torch.no_grad()
def scale_outputs(model: PreTrainedModel, scale: TargetScale) -> None:
    """The inverse of `unscale_outputs`."""
    layer = output_layer(model)
    assert layer is not None
    layer.weight.div_(scale.sd)
    if layer.bias is not None:
        layer.bias.sub_(scale.mean).div_(scale.sd)


@contextmanager
def unscaled_outputs(models: Sequence[PreTrainedModel], scales: Sequence[TargetScale | None]) -> Iterator[None]:
    """Within it, models in training predict in the unit of the rows. Their weights are restored bit by bit."""
    scaled = [(model, scale) for model, scale in zip(models, scales, strict=True) if scale is not None]
    layers = [layer for model, _ in scaled if (layer := output_layer(model)) is not None]
    saved = [[parameter.detach().clone() for parameter in layer.parameters()] for layer in layers]
    for model, scale in scaled:
        unscale_outputs(model, scale)
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, values in zip(layers, saved, strict=True):
                for parameter, value in zip(layer.parameters(), values, strict=True):
                    parameter.copy_(value)
