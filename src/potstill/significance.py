"""Is it a difference, or chance? Intervals and paired tests, with the answer in words.

All of them work on what each example shows, so that two models are compared on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SHOWN = 0.05  # the p below which a difference counts as shown

Score = Callable[[np.ndarray], float]
"""A model's score over some rows, given by their positions; a row may be drawn more than once."""


def wilson(right: int, rows: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): right also near 0 and 1, where the plain one leaves the scale."""
    if rows == 0:
        return 0.0, 1.0
    share, spread = right / rows, z * z / rows
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / rows + spread / (4 * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_interval(score: Score, rows: int, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of any score."""
    random = np.random.default_rng(seed)
    drawn = [score(random.integers(0, rows, rows)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Two-sided exact p that two models err alike (McNemar 1947): (rows,) bool of right answers twice.

    Only rows where one is right and the other wrong speak; under chance each side has half of them.
    """
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    several, fewer = only_ours + only_theirs, min(only_ours, only_theirs)
    if several == 0:
        return 1.0
    logs = [
        math.lgamma(several + 1) - math.lgamma(k + 1) - math.lgamma(several - k + 1) - several * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(one) for one in logs))


@dataclass(frozen=True)
class Difference:
    """Ours less theirs, on the same rows."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def words(self) -> str:
        if self.p >= SHOWN:
            return f"no difference shown (p = {_rounded(self.p)})"
        return f"{'better' if self.mean > 0 else 'worse'}, p = {_rounded(self.p)}"


def paired(ours: Sequence[Score], theirs: Sequence[Score], rows: int, seed: int = 0) -> Difference:
    """The mean difference of two models' scores on the same rows, of one run per seed on each side."""
    return contrast([(1.0, ours), (-1.0, theirs)], rows, seed)


def contrast(sides: Sequence[tuple[float, Sequence[Score]]], rows: int, seed: int = 0) -> Difference:
    """The sum of weight × mean score over seeds, such as (a − b) − (c − d), with an interval from a bootstrap over examples.

    Each draw takes rows with repetition, and seeds with repetition on each side: a difference is shown only where it holds
    for other rows and for other seeds. p is two-sided, from how often a draw lies on the other side of zero.
    """
    random = np.random.default_rng(seed)
    mean = sum(weight * _mean(scores, np.arange(rows)) for weight, scores in sides)
    draws = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        drawn = random.integers(0, rows, rows)
        taken = [[scores[one] for one in random.integers(0, len(scores), len(scores))] for _, scores in sides]
        draws[number] = sum(weight * _mean(some, drawn) for (weight, _), some in zip(sides, taken, strict=True))
    low, high = np.quantile(draws, [0.025, 0.975])
    across = min((draws <= 0).mean(), (draws >= 0).mean())
    p = min(1.0, max(2 * float(across), 1 / RESAMPLES))
    return Difference(mean, float(low), float(high), p)


def _mean(scores: Sequence[Score], rows: np.ndarray) -> float:
    return float(np.mean([score(rows) for score in scores]))


def _rounded(p: float) -> str:
    return "0.001 or less" if p <= 0.001 else f"{p:.2g}"
