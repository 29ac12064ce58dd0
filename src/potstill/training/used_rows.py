"""Train only the rows of the word embeddings that occur in the data.

A row that no example contains has no gradient. All that AdamW does to it is weight decay: one multiplication per step, which
can wait until somebody reads the row. So for the time of training the table is swapped for a smaller one, and the gradient,
its norm and the optimizer pass over a fraction of the rows:

    token ids     whole table            small table (trained)
                  0  [PAD]   ──────────► 0
        ┌───────► 1  the     ──────────► 1
     places       2  xylem   no example contains it: its decays wait in `pending`
        └───────► 3  cat     ──────────► 2

    within `with`:    the embedding layer holds the small table, and a hook maps ids to `places`
    `set_aside()`,    the pending decays are applied to the whole table, the small rows are copied
    after `with`:     into it, and the layer holds the whole table again

Checkpoints hold the optimizer state of the whole table (`spread`, `gather`), so they do not depend on this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, used_token_ids
from potstill.models.compression.held import HeldWeights
from potstill.recipe.schema import Optimizer

ROWS_AT_ONCE = 2048  # of the table: all pending decays are applied to them while they are in the cache


class UsedRows:
    """Within it, the embedding layer has only the rows that occur; after it, the table is whole again."""

    def __init__(self, table: nn.Embedding, occurs: np.ndarray) -> None:
        self.table, self.whole, self.padding = table, table.weight, table.padding_idx
        mask = torch.from_numpy(occurs).to(self.whole.device)  # (rows of the whole table,) bool
        if self.padding is not None:
            mask[self.padding] = True
        self.used = mask.nonzero()[:, 0]
        # an id that does not occur is mapped beyond the small table, so that looking it up fails at once
        self.places = torch.where(mask, mask.cumsum(0) - 1, len(self.used))
        self.small = self.whole if mask.all() else nn.Parameter(self.whole.detach()[self.used])
        self.pending: list[float] = []  # factors by which the unused rows have yet to be multiplied

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
                    for factor in self.pending:  # one by one: their product would round differently
                        rows.mul_(factor)
                self.whole[self.used] = self.small
            self.pending.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it, the table is whole and up to date: for dev, whose texts hold other words, and for saving."""
        self.__exit__()
        yield
        self.__enter__()

    def decay(self, amount: float) -> None:
        """Note an optimizer step; `amount` is its rate times the weight decay."""
        if amount and self.small is not self.whole:
            self.pending.append(1 - amount)

    def spread(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The optimizer state as for the whole table. Rows that never had a gradient get zeros."""
        names = self._state_of_table(optimizer, tensors, self.small)
        zeros = {name: torch.zeros_like(self.whole.detach()) for name in names}
        return tensors | {name: zeros[name].index_copy_(0, self.used, tensors[name]) for name in names}

    def gather(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `spread`."""
        names = self._state_of_table(optimizer, tensors, self.whole)
        return tensors | {name: tensors[name][self.used.cpu()] for name in names}

    def _state_of_table(self, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], like: Tensor) -> list[str]:
        """Names of the state tensors that have a row per row of the table."""
        parameters = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if self.small is self.whole or id(self.small) not in parameters:
            return []
        prefix = f"{parameters.index(id(self.small))}."
        return [name for name, tensor in tensors.items() if name.startswith(prefix) and tensor.shape == like.shape]


def used_rows(
    settings: Optimizer,
    network: nn.Module,
    model: PreTrainedModel,
    sources: Sequence[TokenisedSet],
    held: HeldWeights | None = None,
) -> UsedRows:
    """The rows of the first model's word embeddings that are trained.

    All of them if another module reads the table too (tied weights), if its rows share values (`held`), or if weight decay
    is part of the gradient, as in Adadelta and SGD: a row without a gradient then moves in a way that is not one
    multiplication.
    """
    table = model.get_input_embeddings()
    if table is None:  # a network that reads pixels
        return UsedRows(nn.Embedding(1, 1), np.ones(1, np.bool_))
    assert isinstance(table, nn.Embedding)
    readers = sum(weight is table.weight for module in network.modules() for weight in module._parameters.values())
    plain = type(table) is nn.Embedding and table.max_norm is None and not table.sparse and table.weight.requires_grad
    plain = plain and not (held is not None and held.holds(table.weight))
    if plain and readers == 1 and (settings.name == "adamw" or not settings.weight_decay):
        return UsedRows(table, used_token_ids(sources, table.num_embeddings))
    return UsedRows(table, np.ones(table.num_embeddings, np.bool_))
