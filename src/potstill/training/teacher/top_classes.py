"""Logits over many classes, such as a vocabulary, as the most probable classes and the probability of all others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_ZERO = torch.finfo(torch.float32).min  # instead of -inf, since memory stores finite numbers only


def pack_top_classes(logits: Tensor, top: int) -> Tensor:
    """(predictions, classes) -> (predictions, packed_width) float32.

    A row holds the most probable classes (integers, exact below 2²⁴), their log probabilities, the log probability of all
    other classes together, and the number of classes.
    """
    logits = logits.float()
    classes = logits.shape[-1]
    best, which = logits.topk(min(top, classes), dim=-1)
    total = logits.logsumexp(-1, keepdim=True)
    rest = logits.scatter(-1, which, -torch.inf).logsumexp(-1, keepdim=True)
    log_p = (torch.cat([best, rest], -1) - total).clamp(min=LOG_ZERO)
    return torch.cat([which.float(), log_p, torch.full_like(rest, classes)], -1)


def packed_width(top: int, classes: int) -> int:
    return 2 * min(top, classes) + 2


def unpack_top_classes(rows: Tensor) -> Tensor:
    """(predictions, packed_width) -> (predictions, classes) log probabilities.

    They are exact for the most probable classes; all others share their probability evenly. So every loss of logits can be
    used. At T = 1 its terms of the top classes are exact, and the others have the right total. At a higher T they weigh more
    than they should, since they are flat.
    """
    top = (rows.shape[-1] - 2) // 2
    which, best, rest = rows[:, :top].long(), rows[:, top:-2], rows[:, -2:-1]
    classes = int(rows[0, -1]) if len(rows) else top
    others = rest - math.log(max(classes - top, 1))
    log_p = others.expand(-1, classes).scatter(-1, which, best)
    return log_p.masked_fill(log_p <= LOG_ZERO, -torch.inf)
