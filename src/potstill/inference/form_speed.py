"""How fast the forms of one network answer on this machine: a few texts alone, and as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from potstill.inference.export_types import Seconds
from potstill.models.inference import Forward
from potstill.system.processor import best_seconds

ALONE, TOGETHER = 8, 32  # texts
TURNS, LIMIT = 5, 2.0  # turns; seconds after which none is begun

Inputs = dict[str, Tensor]


def form_seconds(forms: Mapping[str, Forward], alone: Sequence[Inputs], together: Inputs) -> dict[str, Seconds]:
    """Time forms on the same inputs: those of single texts, and those of one batch. All take turns, and the best one counts."""
    works = {
        (name, place): partial(forward, inputs)
        for name, forward in forms.items()
        for place, inputs in enumerate([together, *alone])
    }
    best = best_seconds(works, TURNS, LIMIT)
    texts = len(next(iter(together.values())))
    return {
        name: Seconds(float(np.median([best[name, 1 + place] for place in range(len(alone))])), best[name, 0] / texts)
        for name in forms
    }
