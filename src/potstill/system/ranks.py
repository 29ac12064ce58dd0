"""Several processes that make one student together, started by torchrun or `accelerate launch`. A process alone pays nothing.

Every rank goes through the same steps in the same order. What is decided or written once is done by the first and told to
the others; what is computed is shared out and summed. A rank that dies closes its connections: the others end in an
error at their next exchange, and the launcher ends the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Found = TypeVar("Found")
_alone = False  # while the first does something for all, nothing is exchanged


def count() -> int:
    started = dist.is_available() and dist.is_initialized() and not _alone
    return dist.get_world_size() if started else 1


def number() -> int:
    return dist.get_rank() if count() > 1 else 0


def leave() -> None:
    """At the end of a process."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def is_first() -> bool:
    return number() == 0


def wait() -> None:
    """Until every rank is here."""
    if count() > 1:
        dist.barrier()


def by_the_first(work: Callable[[], Found]) -> Found:
    """What the first rank finds, told to all; also the error it ends in, so that all end in it and none waits for ever."""
    global _alone
    if count() == 1:
        return work()
    told: list[Any] = [None, None]
    if is_first():
        _alone = True
        try:
            told[0] = work()
        except Exception as error:
            told[1] = error
        finally:
            _alone = False
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    found: Found = told[0]
    return found


@contextmanager
def first_only(manager: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """A context of the first rank alone; an error on entering it is everybody's."""
    with ExitStack() as stack:
        by_the_first(lambda: stack.enter_context(manager()))
        yield


def the_first_before_others(work: Callable[[], Found]) -> Found:
    """What each rank finds by itself, the first before the others: they find it in the cache."""
    if count() == 1:
        return work()
    mine: list[Found] = []
    by_the_first(lambda: mine.append(work()))
    return mine[0] if mine else work()


def sum_gradients(parameters: Iterable[nn.Parameter], numbers: list[float]) -> list[float]:
    """Sum each parameter's gradient over all ranks, in place, and some numbers with them; one exchange for all.

    A parameter that no rank has a gradient for keeps none: zeros would let the optimizer decay it.
    """
    if count() == 1:
        return numbers
    every = [parameter for parameter in parameters if parameter.requires_grad]
    device = every[0].device
    told = torch.tensor([*(float(one.grad is not None) for one in every), *numbers], dtype=torch.float64, device=device)
    dist.all_reduce(told)
    met = [one for one, flag in zip(every, told.tolist(), strict=False) if flag]
    if met:
        flat = torch.cat([_gradient(one).reshape(-1) for one in met])
        dist.all_reduce(flat)
        for one, part in zip(met, flat.split([one.numel() for one in met]), strict=True):
            one.grad = part.view_as(one)
    return [float(one) for one in told[len(every) :]]


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
