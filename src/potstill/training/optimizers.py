"""How weights move: the optimizer, its rate, and the rows of the word table that can move at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, used_token_ids
from potstill.models.anatomy import undecayed
from potstill.recipe.schema import Optimizer

ROWS_AT_ONCE = 2048  # of a table, so that all waiting decays are applied to them while they lie in the cache


def make_optimizer(settings: Optimizer, models: list[PreTrainedModel], bridges: nn.Module) -> torch.optim.Optimizer:
    """Biases and norms get no weight decay. Parameters that the models share are taken once."""
    plain: list[Tensor] = []
    decayed: list[Tensor] = []
    seen: set[int] = set()
    for model in models:
        exempt = undecayed(model)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                (plain if name in exempt else decayed).append(parameter)
    rate = settings.full_rate
    bridge_rate = rate if settings.bridge_rate is None else settings.bridge_rate
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay, "full_rate": rate},
        {"params": plain, "weight_decay": 0.0, "full_rate": rate},
        {"params": list(bridges.parameters()), "weight_decay": 0.0, "full_rate": bridge_rate},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=True)
    if settings.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=rate, rho=0.95)
    return torch.optim.SGD(groups, lr=rate, momentum=0.9)


def set_rate(optimizer: torch.optim.Optimizer, settings: Optimizer, step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to zero or none: a function of the step, so there is no schedule to store."""
    warm = settings.warmup * steps
    share = (step + 1) / warm if step + 1 < warm else 1.0
    if settings.decay == "linear" and share == 1.0:
        share = (steps - step) / max(steps - warm, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = group["full_rate"] * min(share, 1.0)
    return settings.full_rate * min(share, 1.0)


class UsedRows:
    """Within it, the model's word table has only those rows that occur in the data; after it, the table is whole again.

    A row that no example contains has no gradient: all that happens to it is weight decay, one multiplication per step,
    which waits until somebody looks. So the gradient, its norm and the optimizer pass over a fraction of the table.
    """

    def __init__(self, table: nn.Embedding, occurs: np.ndarray) -> None:
        self.table, self.whole, self.padding = table, table.weight, table.padding_idx
        mask = torch.from_numpy(occurs).to(self.whole.device)  # (rows of the whole table,) bool
        if self.padding is not None:
            mask[self.padding] = True
        self.used = mask.nonzero()[:, 0]
        # an id that does not occur gets a place beyond the small table: asking for it fails at once
        self.places = torch.where(mask, mask.cumsum(0) - 1, len(self.used))
        self.small = self.whole if mask.all() else nn.Parameter(self.whole.detach()[self.used])
        self.pending: list[float] = []  # factors of steps that the unused rows have not seen yet

    def __enter__(self) -> UsedRows:
        if self.small is not self.whole:
            self.table.weight = self.small
            self.table.padding_idx = None if self.padding is None else int(self.places[self.padding])
            self.hook = self.table.register_forward_pre_hook(lambda _, ids: (self.places[ids[0]],))
        return self

    def __exit__(self, *_: object) -> None:
        if self.small is not self.whole:
            self.hook.remove()
            self.table.weight, self.table.padding_idx = self.whole, self.padding
            with torch.no_grad():
                for rows in self.whole.split(ROWS_AT_ONCE):
                    for factor in self.pending:  # one by one: their product would be rounded in another way
                        rows.mul_(factor)
                self.whole[self.used] = self.small
            self.pending.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """The whole table, up to date, for dev (whose texts hold other words) and for what is saved."""
        self.__exit__()
        yield
        self.__enter__()

    def decay(self, amount: float) -> None:
        """A step was taken; `amount` is its rate times the weight decay."""
        if amount and self.small is not self.whole:
            self.pending.append(1 - amount)

    def spread(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The optimizer's tensors as they are for the whole table: a row that never had a gradient has zeros."""
        mine = self._mine(optimizer, tensors, self.small)
        zeros = {name: torch.zeros_like(self.whole.detach()) for name in mine}
        return tensors | {name: zeros[name].index_copy_(0, self.used, tensors[name]) for name in mine}

    def gather(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The way back."""
        mine = self._mine(optimizer, tensors, self.whole)
        return tensors | {name: tensors[name][self.used.cpu()] for name in mine}

    def _mine(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], like: Tensor) -> list[str]:
        parameters = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if self.small is self.whole or id(self.small) not in parameters:
            return []
        prefix = f"{parameters.index(id(self.small))}."
        return [name for name, tensor in tensors.items() if name.startswith(prefix) and tensor.shape == like.shape]


def used_rows(
    settings: Optimizer, network: nn.Module, model: PreTrainedModel, sources: Sequence[TokenisedSet]
) -> UsedRows:
    """The rows of the first model's table that can be trained alone: all of them where anything forbids to leave some out.

    A table that something else reads too (tied weights) must stay whole. Where the weight decay is part of the gradient,
    as in Adadelta and SGD, a row without a gradient moves in a way that is not one multiplication.
    """
    table = model.get_input_embeddings()
    if table is None:  # a network that reads pixels
        return UsedRows(nn.Embedding(1, 1), np.ones(1, np.bool_))
    assert isinstance(table, nn.Embedding)
    readers = sum(weight is table.weight for module in network.modules() for weight in module._parameters.values())
    plain = type(table) is nn.Embedding and table.max_norm is None and not table.sparse and table.weight.requires_grad
    if plain and readers == 1 and (settings.name == "adamw" or not settings.weight_decay):
        return UsedRows(table, used_token_ids(sources, table.num_embeddings))
    return UsedRows(table, np.ones(table.num_embeddings, np.bool_))
