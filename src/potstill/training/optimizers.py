"""Optimizers and their learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from potstill.models.anatomy import undecayed
from potstill.models.compression.masks import prunable
from potstill.recipe.schema import Optimizer


def make_optimizer(settings: Optimizer, models: list[PreTrainedModel], projections: nn.Module) -> torch.optim.Optimizer:
    """Biases, norms and projections get no weight decay. Parameters that models share are taken once."""
    decayed: list[Tensor] = []
    plain: list[Tensor] = []
    seen: set[int] = set()
    for model in models:
        exempt = undecayed(model)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                (plain if name in exempt else decayed).append(parameter)
    rate = settings.full_rate
    projection_rate = rate if settings.bridge_rate is None else settings.bridge_rate
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay, "full_rate": rate},
        {"params": plain, "weight_decay": 0.0, "full_rate": rate},
        {"params": list(projections.parameters()), "weight_decay": 0.0, "full_rate": projection_rate},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=True)
    if settings.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=rate, rho=0.95)
    return torch.optim.SGD(groups, lr=rate, momentum=0.9)


def set_rate(optimizer: torch.optim.Optimizer, settings: Optimizer, step: int, steps: int) -> float:
    """Set and return the rate of a step: linear warm-up, then linear decay to zero or none.

    It is a function of the step, so there is no scheduler state to save.
    """
    warm = settings.warmup * steps
    share = (step + 1) / warm if step + 1 < warm else 1.0
    if settings.decay == "linear" and share == 1.0:
        share = (steps - step) / max(steps - warm, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = group["full_rate"] * min(share, 1.0)
    return settings.full_rate * min(share, 1.0)


class BoundedNorms:
    """The matrices and kernels of the layers whose units have a largest length of incoming weights (Hinton et al., 2012,
    arXiv:1207.0580): a unit's weights that grew longer in a step are scaled to this length."""

    def __init__(self, models: list[PreTrainedModel], most: float | None) -> None:
        self.most = most or 0.0
        self.weights: list[tuple[Tensor, int]] = []  # each with the dimension of its units
        seen: set[int] = set()
        for model in models if most is not None else ():
            for name, weight in prunable(model).items():
                if weight.requires_grad and id(weight) not in seen:
                    seen.add(id(weight))
                    owner = model.get_submodule(name.rpartition(".")[0])
                    self.weights.append((weight, 1 if isinstance(owner, Conv1D) else 0))

    @torch.no_grad()
    def settle(self) -> None:
        for weight, units in self.weights:
            weight.copy_(torch.renorm(weight, 2, units, self.most))
