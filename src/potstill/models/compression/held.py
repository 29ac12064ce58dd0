"""What training keeps of compressed weights: zeros stay zero, shared values stay shared, and few bits stay few.

A model says in its config that it was pruned or clustered; which weights that concerns is read off the weights themselves,
so that layers may be dropped and vocabularies trimmed in between, and the model stays a stock one with plain matrices:

    weights      0.5   0    0.5  −0.2       groups   1  0  1  2     0: stays zero
    gradient     3     9    1     4    ──►           2  0  2  4     `project`: the mean of each group

The projected gradient is the nearest one that keeps the groups, so an optimizer that treats all weights alike keeps them too;
its rounding need not, so `settle` copies the value of one member to all. Han et al. (2016, arXiv:1510.00149) take the sum in
place of the mean: for Adam, which divides by the size of the gradient, that is the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from potstill.errors import TrainingError
from potstill.models.compression.masks import prunable
from potstill.models.compression.quantized import QuantizedWeight, levels_of

PRUNED = "potstill_pruned"  # in config.json: true if zeros of its matrices stay zero
OUTPUT = "potstill_pruned_output"  # in config.json: true if those of the task's head do, too
CLUSTERS = "potstill_clusters"  # in config.json: the most values other than zero that one of its matrices shares
MOST = 1 << 14  # values that a matrix may share
EXACT, SCALE = "exact:", "scale:"  # before the names of tensors in a checkpoint
PEEK = 1 << 16  # weights that tell a matrix that shares no values at once


def is_pruned(config: PreTrainedConfig) -> bool:
    return getattr(config, PRUNED, None) is True


def prunes_output(config: PreTrainedConfig) -> bool:
    return is_pruned(config) and getattr(config, OUTPUT, None) is True


def clusters_of(config: PreTrainedConfig) -> int:
    """The most values that a matrix of this model shares; 0 if it was not clustered."""
    count = getattr(config, CLUSTERS, None)
    return count if type(count) is int and 0 < count <= MOST else 0


def shared_values(weight: Tensor, most: int) -> Tensor | None:
    """The values of a matrix other than zero, in increasing order; None if they are more than `most`."""
    for part in (weight.flatten()[:PEEK], weight):
        values = torch.unique(part)
        values = values[values != 0]
        if len(values) > most:
            return None
    return values


def groups_of(weight: Tensor, values: Tensor) -> Tensor:
    """(numbers,) int32: 0 for zeros, else 1 + the place of the weight among `values`."""
    flat = weight.detach().flatten()
    return torch.where(flat == 0, 0, torch.searchsorted(values, flat) + 1).to(torch.int32)


class HeldWeight:
    """A matrix whose zeros (`groups` is bool, True where a weight is kept), or whose groups of equal weights, are kept."""

    def __init__(self, parameter: nn.Parameter, groups: Tensor) -> None:
        self.parameter, self.groups = parameter, groups.to(parameter.device)
        self.shares = groups.dtype != torch.bool
        if self.shares:
            self.groups = self.groups.to(torch.int32)
            self.sizes = torch.bincount(self.groups)
            self.first = torch.zeros_like(self.sizes)  # where in the matrix a member of each group is
            places = torch.arange(parameter.numel(), device=parameter.device)
            self.first.scatter_reduce_(0, self.groups.long(), places, "amin", include_self=False)

    def project(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            return
        if not self.shares:
            gradient.mul_(self.groups)
            return
        # float64: a group may have millions of members. On the CPU they are added in their order, in every run
        sums = torch.bincount(self.groups, gradient.detach().flatten().double(), minlength=len(self.sizes))
        means = sums / self.sizes.clamp(min=1)
        means[0] = 0
        gradient.copy_(means.to(gradient.dtype).index_select(0, self.groups).view_as(gradient))

    @torch.no_grad()
    def settle(self) -> None:
        if not self.shares:
            self.parameter.mul_(self.groups)
            return
        values = self.parameter.flatten()[self.first]
        values[0] = 0
        self.parameter.copy_(values.index_select(0, self.groups).view_as(self.parameter))


class HeldWeights:
    """The held weights of a stage: read off its weights when it begins, and part of its checkpoints.

    While it trains, two groups may meet in one value; that they are two, a resumed run must know.
    """

    def __init__(self, models: Sequence[PreTrainedModel], saved: Mapping[str, Tensor] | None = None) -> None:
        self.weights: dict[str, HeldWeight] = {}
        self.quantized: dict[str, QuantizedWeight] = {}
        self._find_quantized(models, saved)
        if saved is not None:
            every = {
                f"{place}.{name}": one for place, model in enumerate(models) for name, one in model.named_parameters()
            }
            for name, groups in saved.items():
                if name.startswith((EXACT, SCALE)):
                    continue
                if name not in every or groups.numel() != every[name].numel():
                    raise TrainingError(
                        "the checkpoint belongs to another student; write --resume never --overwrite to start again"
                    )
                self.weights[name] = HeldWeight(every[name], groups)
            return
        seen: set[int] = set()
        for number, model in enumerate(models):
            pruned, clusters = is_pruned(model.config), clusters_of(model.config)
            if not pruned and not clusters:
                continue
            # a table has a row of zeros for padding, which nothing trains
            with_zeros = set(prunable(model, prunes_output(model.config))) if pruned else set()
            for name, parameter in model.named_parameters():
                if parameter.ndim < 2 or id(parameter) in seen or not parameter.requires_grad:
                    continue
                seen.add(id(parameter))
                values = shared_values(parameter.detach(), clusters) if clusters else None
                if values is not None:
                    self.weights[f"{number}.{name}"] = HeldWeight(parameter, groups_of(parameter, values))
                elif name in with_zeros and bool((parameter == 0).any()):
                    self.weights[f"{number}.{name}"] = HeldWeight(parameter, parameter.detach() != 0)

    def _find_quantized(self, models: Sequence[PreTrainedModel], saved: Mapping[str, Tensor] | None) -> None:
        seen: set[int] = set()
        for number, model in enumerate(models):
            for name, levels in levels_of(model, is_pruned(model.config)).items():
                parameter = model.get_parameter(name)
                if id(parameter) in seen or not parameter.requires_grad:
                    continue
                seen.add(id(parameter))
                self.quantized[f"{number}.{name}"] = weight = QuantizedWeight(parameter, levels)
                if saved is not None:
                    try:
                        weight.exact.copy_(saved[f"{EXACT}{number}.{name}"])
                        weight.scale.copy_(saved[f"{SCALE}{number}.{name}"])
                    except (KeyError, RuntimeError):
                        raise TrainingError(
                            "the checkpoint belongs to another student; write --resume never --overwrite to start again"
                        ) from None

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs: one or two bytes for each weight, and the exact weights of quantized ones."""
        exact = {f"{EXACT}{name}": weight.exact for name, weight in self.quantized.items()}
        scales = {f"{SCALE}{name}": weight.scale for name, weight in self.quantized.items()}
        kept = {name: weight.groups for name, weight in self.weights.items()}
        return (
            exact
            | scales
            | {
                name: groups.to(torch.uint8 if len(self.weights[name].sizes) <= 256 else torch.int16)
                if self.weights[name].shares
                else groups
                for name, groups in kept.items()
            }
        )

    def holds(self, parameter: Tensor) -> bool:
        parameters = [weight.parameter for weight in self.weights.values()]
        parameters += [weight.parameter for weight in self.quantized.values()]
        return any(held is parameter for held in parameters)

    def project(self) -> None:
        """Make of each gradient the nearest one that changes no zero, and all members of a group alike."""
        for weight in self.weights.values():
            weight.project()

    def release(self) -> None:
        """Before a step of the optimizer, which moves the exact weights of quantized matrices."""
        for weight in self.quantized.values():
            weight.release()

    def settle(self) -> None:
        """After it: set zeros to zero, all members of a group to the same value, and round what is quantized."""
        for weight in self.weights.values():
            weight.settle()
        for rounded in self.quantized.values():
            rounded.settle()
