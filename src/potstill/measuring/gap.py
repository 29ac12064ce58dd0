"""The share of the gap between fine-tuning and the teacher that a student closes, with an interval over rows and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potstill.measuring.measurements import ClosedGap
from potstill.measuring.significance import Difference, combined, row_covariance
from potstill.tasks.metrics.labels import Score

FIRST_STEP, FARTHEST = 0.1, 1e6  # in shares
HALVINGS = 24


def closed_gap(ours: Sequence[Score], baseline: Sequence[Score], teacher: Sequence[Score], rows: int) -> ClosedGap:
    """Return (ours − baseline) / (teacher − baseline) of the mean scores, with one run per seed on each side."""
    runs = [*ours, *baseline, *teacher]
    scores = np.array([score(np.arange(rows)) for score in runs])
    return gap_of_scores((len(ours), len(baseline), len(teacher)), scores, row_covariance(runs, rows), rows)


def gap_of_scores(runs: tuple[int, int, int], scores: np.ndarray, covariance: np.ndarray, rows: int) -> ClosedGap:
    """`runs`: of student, baseline and teacher; the others as `combined` takes them.

    The 95 % interval holds every share r for which ours − baseline − r · (teacher − baseline) does not differ from 0 by
    the test of `significance` (Fieller 1954). It is finite where the teacher is shown to be better than the baseline;
    elsewhere the share is not defined, since it is divided by what may be nothing.
    """

    def contrast(*weights: float) -> Difference:
        return combined(list(zip(weights, runs, strict=True)), scores, covariance, rows)

    gap = contrast(0.0, -1.0, 1.0)
    if not (gap.is_shown and gap.mean > 0):
        return ClosedGap(gap.mean)

    def is_possible(share: float) -> bool:
        tested = contrast(1.0, share - 1.0, -share)
        return tested.low <= 0 <= tested.high

    share = contrast(1.0, -1.0, 0.0).mean / gap.mean
    return ClosedGap(gap.mean, share, _end(is_possible, share, -1.0), _end(is_possible, share, 1.0))


def _end(is_possible: Callable[[float], bool], share: float, direction: float) -> float | None:
    """Return the last possible share in a direction: doubled steps go beyond it, and halving finds it between two of them."""
    inside, step = share, FIRST_STEP
    while is_possible(share + direction * step):
        inside, step = share + direction * step, 2 * step
        if step > FARTHEST:
            return None
    outside = share + direction * step
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_possible(middle) else (inside, middle)
    return inside
