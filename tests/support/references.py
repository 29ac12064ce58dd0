"""What checks against reference files have in common: batches of given numbers, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from potstill.signals import Batch, Term, View

Case = dict[str, Any]
Checks = dict[str, dict[str | None, Callable[[Case], None]]]  # file -> kind of case -> check


def tensor(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def batch_of(labels: list[int] | None, size: int) -> Batch:
    """Examples with labels alone: all that losses of one prediction per example read."""
    at = torch.stack([torch.arange(size), torch.zeros(size, dtype=torch.long)], 1)
    view = View({}, torch.ones(size, 1, dtype=torch.bool), at)
    targets = torch.tensor(labels if labels is not None else [0] * size)
    known = torch.full((size,), labels is not None)
    counts: Any = {"examples": size, "predictions": size, "labelled": size, "tokens": size}
    all_of_them = torch.ones(size, dtype=torch.bool)
    return Batch(torch.arange(size), view, view, targets, known, all_of_them, all_of_them, counts, "class")


def close(found: Any, expected: Any, dtype: torch.dtype = torch.float64, loose: float = 1.0) -> None:
    """1e-9 relative in float64, 1e-5 in float32; absolute below one, since differences of large numbers keep no more."""
    tolerance = loose * (1e-9 if dtype == torch.float64 else 1e-5)
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


def value(terms: dict[str, Term], name: str, batch: Batch) -> Tensor:
    return terms[name].mean(batch.counts)


def total(terms: dict[str, Term], batch: Batch) -> Tensor:
    return torch.stack([term.mean(batch.counts) for term in terms.values()]).sum()
