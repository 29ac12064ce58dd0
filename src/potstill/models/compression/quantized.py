"""Quantization-aware training: weights of few bits in every forward pass, moved by steps too small for them.

A model says in its config how many bits its matrices have; the weights that it has, and that are saved, are the rounded ones.
A stage keeps the exact weights beside them: a step of the optimizer moves those, by the gradient at the rounded ones (the
straight-through estimator: Bengio et al., 2013, arXiv:1308.3432; Courbariaux et al., 2015, arXiv:1511.00363), and they are
rounded again. So the network, its exports and its dev scores never see any other weights, and it stays a stock one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from potstill.models.compression.masks import prunable, tables
from potstill.models.compression.quantization import Levels

BITS = "potstill_bits"  # in config.json: {"layers": 4, "embeddings": 8, "per_row": true}
MOST_BITS = 8


def stated_bits(config: PreTrainedConfig) -> dict[str, Any]:
    """What the config says, if it is something that potstill has written; else an empty table."""
    stated = getattr(config, BITS, None)
    if not isinstance(stated, dict) or stated.keys() != {"layers", "embeddings", "per_row"}:
        return {}
    counts = [stated["layers"], *([] if stated["embeddings"] is None else [stated["embeddings"]])]
    good = all(type(bits) is int and 1 <= bits <= MOST_BITS for bits in counts) and type(stated["per_row"]) is bool
    return stated if good else {}


def levels_of(model: PreTrainedModel, pruned: bool) -> dict[str, Levels]:
    """How each matrix of a model is rounded, by its name; empty if the model is not quantized."""
    if not (stated := stated_bits(model.config)):
        return {}
    levels = {name: Levels(stated["layers"], stated["per_row"], pruned) for name in prunable(model)}
    if stated["embeddings"] is not None:
        levels |= {name: Levels(stated["embeddings"], stated["per_row"]) for name in tables(model)}
    return levels


class QuantizedWeight:
    """A matrix of few bits in training, the exact weights beside it, and the scale that follows them."""

    def __init__(self, parameter: nn.Parameter, levels: Levels) -> None:
        self.parameter, self.levels = parameter, levels
        self.exact = parameter.detach().clone()
        self.scale = levels.widest_scale(self.exact)

    def release(self) -> None:
        """Before a step of the optimizer: the parameter is the exact weights."""
        self.parameter.data.copy_(self.exact)

    def settle(self) -> None:
        """After it: note the exact weights, and round the parameter."""
        self.exact.copy_(self.parameter.detach())
        self.scale = self.levels.refitted(self.exact, self.scale)
        self.parameter.data.copy_(self.levels.rounded(self.exact, self.scale))


@torch.no_grad()
def round_weights(model: PreTrainedModel, pruned: bool) -> None:
    """Round the matrices of a model in place, to as many bits as its config says."""
    for name, levels in levels_of(model, pruned).items():
        weight = model.get_parameter(name)
        weight.copy_(levels.rounded(weight, levels.best_scale(weight)))
