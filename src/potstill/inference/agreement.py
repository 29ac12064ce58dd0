"""Whether two forms of a network answer the same for the purpose: differences of probabilities and predicted classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from potstill.system import processor
from potstill.system.processor import best_seconds

MOST_APART = 0.02  # the largest difference of a probability; of values, in standard deviations
SAME_CLASS = 0.99  # share of predictions
FASTER = 1.1  # times, from which another form than float32 is taken

Batch = TypeVar("Batch")


def differences(outcome: str, plain: list[Tensor], other: list[Tensor]) -> tuple[float, float]:
    """The largest difference of a probability, and the share of predictions of the same class."""
    if outcome == "value":
        values, others = torch.cat(plain).double(), torch.cat(other).double()
        return float((values - others).abs().max() / values.std().clamp_min(1e-6)), 1.0
    apart, same, count = 0.0, 0, 0
    for before, after in zip(plain, other, strict=True):
        p, q = (
            each.double().sigmoid() if outcome == "classes" else each.double().softmax(-1) for each in (before, after)
        )
        apart = max(apart, float((p - q).nan_to_num(nan=1.0).abs().max()))
        agree = (p > 0.5) == (q > 0.5) if outcome == "classes" else p.argmax(-1) == q.argmax(-1)
        same, count = same + int(agree.sum()), count + agree.numel()
    return apart, same / max(count, 1)


def better_in_bfloat16(
    plain: Callable[[Batch], Tensor],
    faster: Callable[[Batch], Tensor],
    batches: Sequence[Batch],
    outcome: str,
    what: dict[str, Any],
) -> bool:
    """Whether a network in bfloat16 answers these batches as in float32, and clearly faster. Measured once, then remembered.

    `plain`, `faster`: the logits of a batch; `what`: all that the result depends on.
    """
    known = processor.recall(what)
    if known is None:
        said: dict[str, list[Tensor]] = {"float32": [], "bfloat16": []}
        seconds = dict.fromkeys(said, 0.0)
        for batch in batches:  # one by one: a short turn finds a quiet moment on a busy machine
            works = {"float32": partial(plain, batch), "bfloat16": partial(faster, batch)}
            for form, spent in best_seconds(works, 1).items():
                seconds[form] += spent
                said[form].append(works[form]())
        apart, same = differences(outcome, said["float32"], said["bfloat16"])
        known = {"times_faster": seconds["float32"] / seconds["bfloat16"], "apart": apart, "same": same}
        processor.note(what, known)
    agrees = known["apart"] <= MOST_APART and known["same"] >= SAME_CLASS
    return bool(agrees and known["times_faster"] >= FASTER)
