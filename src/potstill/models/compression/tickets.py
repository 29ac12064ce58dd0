"""Lottery tickets: prune trained weights, rewind the others (Frankle and Carbin, 2019, arXiv:1803.03635).

    trained   0.9  0  −0.1   0.4      mask   1  0  0  1      of θ₀   0.3   0.2  −0.5  −0.1     ticket   0.3  0  0  −0.1

What was pruned before is read off the trained weights, whose zeros no step moves (`held`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from potstill.models.compression.masks import Masks, is_task_head, smallest_removed
from potstill.models.student import stock_model
from potstill.system.randomness import mix


def pruned_further(weights: Mapping[str, Tensor], share: float, of_remaining: bool, per_layer: bool) -> Masks:
    """Masks without a further share of the smallest magnitudes, of one threshold or of one for each matrix.

    `of_remaining`: the share of what is not zero, rounded up; else of all weights, rounded.
    """
    groups = [[name] for name in weights] if per_layer else [list(weights)]
    masks: Masks = {}
    for names in groups:
        group = {name: weights[name] for name in names}
        before = {name: weight.detach() != 0 for name, weight in group.items()}
        remaining = sum(int(mask.sum()) for mask in before.values())
        total = sum(weight.numel() for weight in group.values())
        count = math.ceil(share * remaining) if of_remaining else min(remaining, round(share * total))
        masks |= smallest_removed(group, before, count)
    return masks


@torch.no_grad()
def rewound(
    trained: PreTrainedModel, config: PreTrainedConfig, early: PreTrainedModel, head: PreTrainedModel
) -> PreTrainedModel:
    """A new model in the form of `trained`: its encoder has the weights of `early`, its task's head those of `head`.

    Weights that these do not have, such as the head of another task, are those of `trained`. All are copies: whatever is
    trained later, `early` stays as it is.
    """
    built = stock_model(trained, config, trained.state_dict())
    sources = [dict([*model.named_parameters(), *model.named_buffers()]) for model in (early, head)]
    # each tensor once, under its first name: a table that is also the output keeps being both
    for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
        found = sources[is_task_head(built, name)].get(name)
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
    return built


def random_model(like: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A network of the same shape with random weights, others than those that a student of this seed began with."""
    return stock_model(like, copy.deepcopy(like.config), None, mix(seed, "drawn again"))


@torch.no_grad()
def set_between(model: PreTrainedModel, one: PreTrainedModel, other: PreTrainedModel, share: float) -> None:
    """Give a model the weights on the line between two others: (1 − share) of the one and `share` of the other."""
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.lerp(one.get_parameter(name), other.get_parameter(name), share))
