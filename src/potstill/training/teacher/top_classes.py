"""Logits over many classes as their most probable ones: made from logits, and as the columns that a memory holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from potstill.signals import TopClasses
from potstill.training.losses import LOG_ZERO
from potstill.training.teacher.memory import Column


def top_classes(logits: Tensor, top: int) -> TopClasses:
    """(predictions, classes) -> the `top` most probable classes in float32, or all if there are no more."""
    logits = logits.float()
    best, which = logits.topk(min(top, logits.shape[-1]), dim=-1)
    total = logits.logsumexp(-1, keepdim=True)
    rest = logits.scatter(-1, which, -torch.inf).logsumexp(-1, keepdim=True)
    best, rest = ((part - total).clamp(min=LOG_ZERO) for part in (best, rest))
    return TopClasses(which, best, rest.squeeze(-1), logits.shape[-1])


def column_names(top: int) -> list[str]:
    return [f"top.{top}.{part}" for part in ("classes", "log_probabilities", "rest", "of")]


def columns_of(top: int, classes: int) -> dict[str, Column]:
    """The columns for `top` of so many classes, and the shapes of their rows."""
    size = min(top, classes)
    return dict(
        zip(
            column_names(top), (Column((size,), "int32"), Column((size,)), Column(()), Column((), "int32")), strict=True
        )
    )


def to_columns(top: int, answer: TopClasses) -> dict[str, np.ndarray]:
    of = np.full(len(answer.classes), answer.of, np.int32)
    values = (
        answer.classes.cpu().numpy().astype(np.int32),
        answer.log_probabilities.cpu().numpy(),
        answer.rest.cpu().numpy(),
        of,
    )
    return dict(zip(column_names(top), values, strict=True))


def from_columns(top: int, read: Callable[[str], Tensor]) -> TopClasses:
    """`read` returns the values of a column."""
    classes, log_probabilities, rest, of = map(read, column_names(top))
    return TopClasses(classes.long(), log_probabilities, rest, int(of.max()))
