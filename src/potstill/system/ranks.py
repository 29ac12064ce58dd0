"""Several processes that train one student together, started by torchrun or `accelerate launch`.

Every rank takes the same steps in the same order. Rank 0 decides and writes, and sends its results to the others;
computing is split, and gradients are summed. When a rank dies, its connections close: the others fail at their next
exchange, and the launcher ends the job. With one process all of this costs nothing.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_alone = False


def count() -> int:
    """The number of ranks; 1 while a rank works alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _alone else 1


def number() -> int:
    return dist.get_rank() if count() > 1 else 0


def is_first() -> bool:
    return number() == 0


def wait() -> None:
    """Wait until every rank is here."""
    if count() > 1:
        dist.barrier()


@atexit.register
def leave() -> None:
    """Leave the group of processes. Runs when the process exits; safe to call earlier, or twice."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _working_alone() -> Iterator[None]:
    """Within it, this rank exchanges nothing with the others."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def on_first(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function that rank 0 runs for all.

    Every rank must call it, and every rank gets the result of rank 0, or the exception that it raised.
    """

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return _result_of_first(partial(function, *args, **kwargs))

    return call


def _result_of_first(work: Callable[[], Result]) -> Result:
    if count() == 1:
        return work()
    outcome: list[Any] = [None, None]  # result, exception
    if is_first():
        try:
            with _working_alone():
                outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: Result = outcome[0]
    return result


def entered_on_first(
    manager: Callable[Parameters, AbstractContextManager[None]],
) -> Callable[Parameters, AbstractContextManager[None]]:
    """Decorate a context manager that only rank 0 enters. If it cannot, every rank raises the exception."""

    @contextmanager
    def entered(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Iterator[None]:
        with ExitStack() as stack:
            _result_of_first(lambda: stack.enter_context(manager(*args, **kwargs)))
            yield

    return entered


def first_before_others(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function that every rank runs, rank 0 before the others, which then find its result in the cache."""

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        results: list[Result] = []
        _result_of_first(lambda: results.append(function(*args, **kwargs)))
        with _working_alone():
            return results[0] if results else function(*args, **kwargs)

    return call


def sum_gradients(parameters: Iterable[nn.Parameter], numbers: list[float]) -> list[float]:
    """Sum the gradient of each parameter over all ranks, in place, and return the sums of the numbers.

    A parameter without a gradient on every rank keeps none: with a gradient of zeros the optimizer would decay it.
    """
    if count() == 1:
        return numbers
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    has_gradient = [float(parameter.grad is not None) for parameter in trained]
    sums = torch.tensor([*has_gradient, *numbers], dtype=torch.float64, device=trained[0].device)
    dist.all_reduce(sums)
    touched = [parameter for parameter, ranks in zip(trained, sums.tolist(), strict=False) if ranks]
    if touched:
        present = [torch.zeros_like(each) if each.grad is None else each.grad for each in touched]
        flat = torch.cat([gradient.reshape(-1) for gradient in present])  # one exchange for all
        dist.all_reduce(flat)
        parts = flat.split([parameter.numel() for parameter in touched])
        for parameter, part in zip(touched, parts, strict=True):
            parameter.grad = part.view_as(parameter)
    return sums[len(trained) :].tolist()
