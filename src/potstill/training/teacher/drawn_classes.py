"""Logits over many classes as a few classes drawn from them: an answer that is right in expectation (arXiv:2503.16870)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from potstill.data.batches import place_keys
from potstill.signals import DrawnClasses, View
from potstill.system.randomness import draw_uniform, splitmix64
from potstill.training.teacher.memory import Column

NUMBERS_AT_ONCE = 2**22  # of the cumulative distributions, in float64
SECOND_HEAD = np.uint64(0xA0761D6478BD642F)  # tells the places of a second head from those of the first


def drawn_classes(logits: Tensor, draws: int, keys: np.ndarray) -> DrawnClasses:
    """(predictions, classes) -> `draws` classes of each prediction, drawn with replacement; `keys`: (predictions,) int64.

    The cumulative distribution is read at (j + u) / draws, j = 0, 1, …, with one u in [0, 1) that depends on the key alone
    (systematic sampling). So a class of probability p is drawn p · draws times in expectation, and never more than one draw
    off; independent draws would be right in expectation too, and vary more.
    """
    u = np.minimum(draw_uniform(keys, (draws,), 1), 1 - 2.0**-32)  # below 1 also after the division
    device = torch.device("cpu") if logits.device.type == "mps" else logits.device  # which has no float64
    points = torch.from_numpy((np.arange(draws) + u) / draws).to(device)  # (predictions, draws)
    classes = torch.empty(points.shape, dtype=torch.int64, device=device)
    rows = max(1, NUMBERS_AT_ONCE // max(1, logits.shape[-1]))
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        cumulative = logits[part].to(device).double().softmax(-1).cumsum(-1)
        # a class without probability begins where it ends, and is never found
        classes[part] = torch.searchsorted(cumulative, points[part] * cumulative[:, -1:], right=True)
    return DrawnClasses(classes.to(logits.device), logits.shape[-1])


def prediction_keys(keys: np.ndarray, view: View) -> np.ndarray:
    """(predictions,) keys of the predictions of a batch, from those of its examples."""
    first = place_keys(keys, view.at[:, 0].cpu().numpy())
    if not view.also_at.numel():
        return first
    second = place_keys(keys, view.also_at[:, 0].cpu().numpy())
    return np.concatenate([first, splitmix64(second.astype(np.uint64) ^ SECOND_HEAD).astype(np.int64)])


def column_names(draws: int) -> list[str]:
    return [f"drawn.{draws}.{part}" for part in ("classes", "of")]


def columns_of(draws: int) -> dict[str, Column]:
    """The columns, and the shapes of their rows."""
    return dict(zip(column_names(draws), (Column((draws,), "int32"), Column((), "int32")), strict=True))


def to_columns(draws: int, answer: DrawnClasses) -> dict[str, np.ndarray]:
    values = answer.classes.cpu().numpy().astype(np.int32), np.full(len(answer.classes), answer.of, np.int32)
    return dict(zip(column_names(draws), values, strict=True))


def from_columns(draws: int, read: Callable[[str], Tensor]) -> DrawnClasses:
    """`read` returns the values of a column."""
    classes, of = map(read, column_names(draws))
    return DrawnClasses(classes.long(), int(of.max()))
