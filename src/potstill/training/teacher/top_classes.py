"""Of an answer over many classes, such as the words of a vocabulary, the most probable ones and what all others have."""

from __future__ import annotations

import math

import torch
from torch import Tensor

NONE = torch.finfo(torch.float32).min  # the log of no probability: a memory keeps finite numbers


def kept(logits: Tensor, top: int) -> Tensor:
    """(predictions, classes) as (predictions, kept_size) float32.

    A row has the classes (whole numbers, exact below 2²⁴) by falling probability, their log probabilities, the log of the
    mass of all others, and the number of classes.
    """
    logits = logits.float()
    classes = logits.shape[-1]
    best, which = logits.topk(min(top, classes), dim=-1)
    whole = logits.logsumexp(-1, keepdim=True)
    rest = logits.scatter(-1, which, -torch.inf).logsumexp(-1, keepdim=True)
    said = (torch.cat([best, rest], -1) - whole).clamp(min=NONE)
    return torch.cat([which.float(), said, torch.full_like(rest, classes)], -1)


def kept_size(top: int, classes: int) -> int:
    return 2 * min(top, classes) + 2


def spread(rows: Tensor) -> Tensor:
    """What was kept as (predictions, classes) log probabilities again: exact for the most probable classes, and for each of the
    others the same share of the mass that they have together.

    So a loss that reads logits needs no second form. At T = 1 its terms of the kept classes are exact, and the others are one
    lump of the right mass. At a higher T the lump weighs more than its classes would, since it is flat.
    """
    top = (rows.shape[-1] - 2) // 2
    which, best, rest = rows[:, :top].long(), rows[:, top:-2], rows[:, -2:-1]
    classes = int(rows[0, -1]) if len(rows) else top
    others = rest - math.log(max(classes - top, 1))
    answer = others.expand(-1, classes).scatter(-1, which, best)
    return answer.masked_fill(answer <= NONE, -torch.inf)
