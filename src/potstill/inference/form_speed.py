"""How fast the forms of one network answer on this machine: a few texts alone, and as one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from potstill.inference.export_types import Checked, Seconds
from potstill.system.processor import best_seconds, described

ALONE, TOGETHER = 8, 32  # texts
TURNS, LIMIT = 25, 1.5  # turns; seconds after which none is begun

FASTER = 1.1  # times, from which another form than the first is taken
LOST = 0.01  # of the agreement, at most

Inputs = TypeVar("Inputs")


def form_seconds(
    forms: Mapping[str, Callable[[Inputs], object]], alone: Sequence[Inputs], together: Inputs, texts: int
) -> dict[str, Seconds]:
    """Time forms on the same inputs: those of single texts, and one batch of `texts`. All take turns, the best one counts."""
    works = {
        (name, place): partial(forward, inputs)
        for name, forward in forms.items()
        for place, inputs in enumerate([together, *alone])
    }
    best = best_seconds(works, TURNS, LIMIT)
    return {
        name: Seconds(float(np.median([best[name, 1 + place] for place in range(len(alone))])), best[name, 0] / texts)
        for name in forms
    }


def faster_form(checked: Mapping[str, Checked]) -> tuple[str, str]:
    """Return which of two forms to keep on this machine, and why.

    The second one, if it takes clearly less time for a text in a batch, and keeps nearly as many predictions.
    """
    (first, usual), (second, other) = checked.items()
    times = other.seconds["this form"].in_batch / usual.seconds["this form"].in_batch
    before, after = usual.agreement, other.agreement
    agrees = before is None or after is None or after >= before - LOST
    kept = second if times * FASTER <= 1 and agrees else first
    where = described(torch.get_num_threads())
    compared = f"{second} takes {times:.2f} times the time of {first} on {where}"
    if before is not None and after is not None:
        compared += f", and keeps {100 * after:.1f} % of the predictions, not {100 * before:.1f} %"
    return kept, f"{kept}: {compared}"
