"""Magnitude pruning: which weights are kept, as masks of matrices (Frankle and Carbin, 2019, arXiv:1803.03635).

A mask is True where a weight is kept. Counts are exact: of equal magnitudes, those of an earlier matrix, and within it
those of an earlier place in row-major order, go first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.models.anatomy import EMBEDDINGS, in_head
from potstill.models.architectures.own_model import PixelConfig
from potstill.system.randomness import mix

Masks = dict[str, Tensor]
"""By the name of a matrix: bool, of its shape, True where a weight is kept."""


def prunable(model: PreTrainedModel, output: bool = False) -> dict[str, nn.Parameter]:
    """The matrices that pruning is about, as Chen et al. (2020, arXiv:2007.12223) choose them: those of the layers and the pooler.

    Left out are embeddings, the task's head, and all vectors: biases and norms. Of networks that read images, the kernels
    of convolutions, (out, in, height, width), are among them. `output`: the matrices of the task's head too.
    """
    owners = dict(model.named_modules())
    dimensions = (2, 4) if isinstance(model.config, PixelConfig) else (2,)
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim in dimensions
        and not isinstance(owners[name.rpartition(".")[0]], nn.Embedding)
        and not EMBEDDINGS.search(name)
        and (output or not is_task_head(model, name))
    }


def is_task_head(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter belongs to what a task alone needs: the head without the pooler, which is pre-trained."""
    return in_head(model, name) and not name.startswith(f"{model.base_model_prefix}.pooler.")


def tables(model: PreTrainedModel) -> dict[str, Tensor]:
    """The embedding tables, with one row for each token, position or kind of text; not those that are computed, as sines are."""
    computed = set(model._keys_to_ignore_on_save or ())
    return {
        name: module.weight
        for owner, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and (name := f"{owner}.weight") not in computed
        and module.weight.requires_grad
    }


def smallest_removed(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, count: int) -> Masks:
    """Masks without the `count` smallest of the remaining magnitudes of all matrices together: one global threshold.

    `masks`: what remained before; None: everything.
    """
    before = masks or {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
    remaining = torch.cat([weight.detach()[before[name]].abs() for name, weight in weights.items()])
    if not 0 <= count <= len(remaining):
        raise ValueError(f"{count} of {len(remaining)} remaining weights cannot be removed")
    kept = torch.ones(len(remaining), dtype=torch.bool, device=remaining.device)
    if count:
        threshold = remaining.kthvalue(count).values
        kept[remaining < threshold] = False
        ties = (remaining == threshold).nonzero()[:, 0]
        kept[ties[: count - int((~kept).sum())]] = False
    masks_after, start = {}, 0
    for name in weights:
        size = int(before[name].sum())
        masks_after[name] = before[name].clone()
        masks_after[name][before[name]] = kept[start : start + size]
        start += size
    return masks_after


def masks_of_sparsity(
    weights: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, sparsity: float, per_layer: bool
) -> Masks:
    """Masks that leave out this share of all weights, rounded to whole weights; of every matrix if `per_layer`.

    What was left out before stays out, also if that is more.
    """
    groups = [[name] for name in weights] if per_layer else [list(weights)]
    after: Masks = {}
    for names in groups:
        group = {name: weights[name] for name in names}
        before = {name: masks[name] for name in names} if masks else None
        total = sum(weight.numel() for weight in group.values())
        gone = sum(int((~mask).sum()) for mask in before.values()) if before else 0
        after |= smallest_removed(group, before, max(0, round(sparsity * total) - gone))
    return after


def random_places(masks: Mapping[str, Tensor], seed: int) -> Masks:
    """Masks that keep as many weights of each matrix, at places that are drawn from the seed: a structure without meaning."""
    drawn: Masks = {}
    for name, mask in masks.items():
        generator = torch.Generator().manual_seed(mix(seed, name, "places"))
        order = torch.randperm(mask.numel(), generator=generator).to(mask.device)
        drawn[name] = mask.flatten()[order].view_as(mask)
    return drawn


def share_of_zeros(weights: Mapping[str, Tensor]) -> float:
    """The share of weights that are exactly zero."""
    zeros = sum(int((weight == 0).sum()) for weight in weights.values())
    return zeros / max(1, sum(weight.numel() for weight in weights.values()))
