"""What training keeps of compressed weights: zeros stay zero, and weights that share a value go on sharing it.

A model says in its config that it was pruned or clustered; which weights that concerns is read off the weights themselves,
so that layers may be dropped and vocabularies trimmed in between, and the model stays a stock one with plain matrices:

    weights      0.5   0    0.5  −0.2       groups   1  0  1  2     0: stays zero
    gradient     3     9    1     4    ──►           2  0  2  4     `project`: the mean of each group

The projected gradient is the nearest one that keeps the groups, so an optimizer that treats all weights alike keeps them too;
its rounding need not, so `settle` copies the value of one member to all. Han et al. (2016, arXiv:1510.00149) take the sum in
place of the mean: for Adam, which divides by the size of the gradient, that is the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from potstill.models.compression.masks import prunable

PRUNED = "potstill_pruned"  # in config.json: true if zeros of its matrices stay zero
CLUSTERS = "potstill_clusters"  # in config.json: the most values other than zero that one of its matrices shares
PEEK = 1 << 16  # weights that tell a matrix that shares no values at once


def is_pruned(config: PreTrainedConfig) -> bool:
    return getattr(config, PRUNED, None) is True


def clusters_of(config: PreTrainedConfig) -> int:
    """The most values that a matrix of this model shares; 0 if it was not clustered."""
    count = getattr(config, CLUSTERS, None)
    return count if type(count) is int and count > 0 else 0


def shared_values(weight: Tensor, most: int) -> Tensor | None:
    """The values of a matrix other than zero, in increasing order; None if they are more than `most`."""
    for part in (weight.flatten()[:PEEK], weight):
        values = torch.unique(part)
        values = values[values != 0]
        if len(values) > most:
            return None
    return values


class HeldWeight:
    """A matrix whose zeros, and perhaps whose groups of equal weights, are kept."""

    def __init__(self, parameter: nn.Parameter, values: Tensor | None) -> None:
        weight = parameter.detach()
        self.parameter, self.kept = parameter, weight != 0
        self.groups: Tensor | None = None  # (numbers,) 0 for zeros, else 1 + the place of the value
        if values is not None:
            found = torch.searchsorted(values, weight.flatten()) + 1
            self.groups = torch.where(self.kept.flatten(), found, 0)
            self.sizes = torch.bincount(self.groups, minlength=len(values) + 1)
            self.first = torch.zeros_like(self.sizes)  # where in the matrix a member of each group is
            self.first[self.groups.flip(0)] = torch.arange(weight.numel(), device=weight.device).flip(0)

    def project(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            return
        if self.groups is None:
            gradient.mul_(self.kept)
            return
        # float64: a group may have millions of members. On the CPU they are added in their order, in every run
        sums = torch.bincount(self.groups, gradient.detach().flatten().double(), minlength=len(self.sizes))
        means = sums / self.sizes.clamp(min=1)
        means[0] = 0
        gradient.copy_(means.to(gradient.dtype)[self.groups].view_as(gradient))

    @torch.no_grad()
    def settle(self) -> None:
        if self.groups is None:
            self.parameter.mul_(self.kept)
            return
        values = self.parameter.flatten()[self.first]
        values[0] = 0
        self.parameter.copy_(values[self.groups].view_as(self.parameter))


class HeldWeights:
    """The held weights of a stage, as they are when it begins: a resumed run reads them off the same weights."""

    def __init__(self, models: Sequence[PreTrainedModel]) -> None:
        self.weights: dict[int, HeldWeight] = {}
        for model in models:
            pruned, clusters = is_pruned(model.config), clusters_of(model.config)
            if not pruned and not clusters:
                continue
            # a table has a row of zeros for padding, which nothing trains
            with_zeros = set(map(id, prunable(model).values())) if pruned else set()
            for parameter in model.parameters():
                if parameter.ndim != 2 or id(parameter) in self.weights or not parameter.requires_grad:
                    continue
                values = shared_values(parameter.detach(), clusters) if clusters else None
                if values is not None or (id(parameter) in with_zeros and bool((parameter == 0).any())):
                    self.weights[id(parameter)] = HeldWeight(parameter, values)

    def holds(self, parameter: Tensor) -> bool:
        return id(parameter) in self.weights

    def project(self) -> None:
        """Make of each gradient the nearest one that changes no zero, and all members of a group alike."""
        for weight in self.weights.values():
            weight.project()

    def settle(self) -> None:
        """After a step of the optimizer: set zeros to zero, and all members of a group to the same value."""
        for weight in self.weights.values():
            weight.settle()
