"""The share of the gap between fine-tuning and the teacher that a student closes, with an interval over rows and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potstill.measuring.measurements import ClosedGap
from potstill.measuring.significance import Difference, combined, row_covariance
from potstill.tasks.metrics.labels import Score

FIRST_STEP, HALVINGS = 0.1, 30  # in shares; 30 halvings give nine digits


def closed_gap(ours: Sequence[Score], baseline: Sequence[Score], teacher: Sequence[Score], rows: int) -> ClosedGap:
    """Return (ours − baseline) / (teacher − baseline) of the mean scores, with one run per seed on each side.

    The 95 % interval holds every share r for which ours − baseline − r · (teacher − baseline) does not differ from 0 by
    the test of `significance` (Fieller 1954). It is finite where the teacher is shown to be better than the baseline;
    elsewhere the share is not defined, since it is divided by what may be nothing.
    """
    runs = [*ours, *baseline, *teacher]
    scores, covariance = np.array([score(np.arange(rows)) for score in runs]), row_covariance(runs, rows)

    def contrast(of_ours: float, of_baseline: float, of_teacher: float) -> Difference:
        weights = (of_ours, of_baseline, of_teacher)
        sides = zip(weights, map(len, (ours, baseline, teacher)), strict=True)
        return combined(list(sides), scores, covariance, rows)

    gap = contrast(0.0, -1.0, 1.0)
    if not (gap.is_shown and gap.mean > 0):
        return ClosedGap(gap.mean)

    def is_possible(share: float) -> bool:
        tested = contrast(1.0, share - 1.0, -share)
        return tested.low <= 0 <= tested.high

    share = contrast(1.0, -1.0, 0.0).mean / gap.mean
    return ClosedGap(gap.mean, share, _end(is_possible, share, -1.0), _end(is_possible, share, 1.0))


def _end(is_possible: Callable[[float], bool], share: float, direction: float) -> float | None:
    """Return the last possible share in a direction: beyond it by doubled steps, then between both by halving."""
    inside, step = share, FIRST_STEP
    while is_possible(inside + direction * step):
        inside, step = inside + direction * step, 2 * step
        if step > 1e6:
            return None
    outside = inside + direction * step
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_possible(middle) else (inside, middle)
    return inside
