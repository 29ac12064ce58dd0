"""Dropout on the CPU at a fraction of its cost: torch draws 64 random bits for every number it may drop; 16 are enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PARTS = 2**16  # a probability is taken to the nearest of so many parts


class QuickDropout(TorchFunctionMode):
    """Within it, dropout on the CPU is `dropout` below. It draws from torch's own generator, so a seed decides it as ever."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is nn.functional.dropout and args[0].device.type == "cpu":
            return dropout(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As torch's, in place or not: each number is zero with probability p, and their mean stays."""
    dropped = round(p * PARTS)
    if not training or dropped in (0, PARTS) or inplace:
        return nn.functional.dropout(states, p, training, inplace)
    words = torch.empty((states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    parts = words.view(torch.int16)[: states.numel()].view(states.shape)
    return states * ((parts >= dropped - PARTS // 2) * (PARTS / (PARTS - dropped))).to(states.dtype)
