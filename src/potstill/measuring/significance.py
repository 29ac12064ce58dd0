"""Is it a difference, or chance? Intervals and paired tests, with the answer in words.

All of them work on what each example shows, so that two models are compared on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from potstill.tasks.metrics.labels import Score

RESAMPLES = 2000
SHOWN = 0.05  # the p below which a difference counts as shown
ONE_SEED = "one seed says nothing about the methods"
DEV = "dev"  # the split that epochs, cells and seeds are chosen by
NOT_TESTED = "dev was chosen by; not tested: give --test for a verdict"
# Runs that spread no more than rows explain have seeds that matter little, or it is luck: of two or three runs it often
# is. These two and the power set how soon it is believed; they were chosen by
# simulation, where levels are then 2.5 to 6.6 % (docs/measuring.md).
BELIEVED, LESS_OF_FEW, POWER = 2.0, 1.5, 20


def wilson(right: int, rows: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): right also near 0 and 1, where the plain one leaves the scale."""
    if rows == 0:
        return 0.0, 1.0
    share, spread = right / rows, z * z / rows
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / rows + spread / (4 * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_interval(score: Score, rows: int, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of any score, over the draws in which it is defined; NaN where it never is."""
    random = np.random.default_rng(seed)
    drawn = np.array([score(random.integers(0, rows, rows)) for _ in range(RESAMPLES)])
    drawn = drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (math.nan, math.nan)
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
    """Ours less theirs, on the same rows. `seeds`: runs of the side that has fewest."""

    mean: float
    low: float
    high: float
    p: float
    seeds: int

    @property
    def is_shown(self) -> bool:
        return self.p < SHOWN

    @property
    def words(self) -> str:
        """What may be said of it. One run a side shows two models, whatever made them."""
        if self.seeds > 1 and self.is_shown:
            return f"{'better' if self.mean > 0 else 'worse'}, p = {_rounded(self.p)}"
        if math.isnan(self.p):
            return "a score is undefined; not tested"
        told = "these two models differ" if self.is_shown else "no difference shown"
        return f"{told} (p = {_rounded(self.p)})" + (f"; {ONE_SEED}" if self.seeds < 2 else "")


def holm(ps: Sequence[float]) -> list[float]:
    """p values of comparisons that are told together, corrected so that all of them hold their level (Holm 1979)."""
    order = sorted((place for place, p in enumerate(ps) if not math.isnan(p)), key=ps.__getitem__)
    corrected, reached = list(ps), 0.0
    for rank, place in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * ps[place]))
        corrected[place] = reached
    return corrected


def told_together(listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Comparisons of one page, in the form of `measurements.json`, with words from p corrected for the number of those tested."""
    tested = [place for place, one in enumerate(listed) if {"p", "seeds"} <= one.keys()]
    told = [dict(one) for one in listed]
    for place, p in zip(tested, holm([listed[place]["p"] for place in tested]), strict=True):
        one = listed[place]
        words = Difference(one["mean"], one["low"], one["high"], p, one["seeds"]).words
        told[place] |= {"p_corrected": p, "comparisons": len(tested), "words": words}
    return told


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """The same, with p corrected for their number; intervals stay those of each alone."""
    return [replace(one, p=p) for one, p in zip(found, holm([one.p for one in found]), strict=True)]


def paired(ours: Sequence[Score], theirs: Sequence[Score], rows: int, seed: int = 0) -> Difference:
    """The mean difference of two models' scores on the same rows, of one run per seed on each side."""
    return contrast([(1.0, ours), (-1.0, theirs)], rows, seed)


def contrast(sides: Sequence[tuple[float, Sequence[Score]]], rows: int, seed: int = 0) -> Difference:
    """The sum of weight × mean score over seeds, such as (a − b) − (c − d), with its 95 % interval and two-sided p.

    A side is the runs of one condition. A difference is shown only where it holds for other rows and for other seeds.
    """
    runs = [score for _, scores in sides for score in scores]
    every = np.arange(rows)
    shape = [(weight, len(scores)) for weight, scores in sides]
    return combined(shape, np.array([score(every) for score in runs]), row_covariance(runs, rows, seed), rows)


def row_covariance(runs: Sequence[Score], rows: int, seed: int = 0) -> np.ndarray:
    """(runs, runs): how the scores of runs vary together over other rows, by bootstrap; NaN where they are undefined."""
    random = np.random.default_rng(seed)
    places = (random.integers(0, rows, rows) for _ in range(RESAMPLES))
    drawn = np.array([[score(some) for score in runs] for some in places])
    drawn = drawn[~np.isnan(drawn).any(1)]  # such as the correlation of rows that all have one value
    return np.atleast_2d(np.cov(drawn.T)) if len(drawn) > 1 else np.full((len(runs), len(runs)), np.nan)


def mean_interval(scores: Sequence[Score], rows: int, seed: int = 0) -> tuple[float, float]:
    """95 % interval of a method's score over other rows and other seeds, from one run per seed."""
    found = contrast([(1.0, scores)], rows, seed)
    return found.low, found.high


def combined(sides: Sequence[tuple[float, int]], scores: np.ndarray, covariance: np.ndarray, rows: int) -> Difference:
    """What rows and seeds say together. `sides`: weight and number of runs; `scores`: (runs,) on all rows, side by side;
    `covariance`: (runs, runs) of these scores over other rows.

    The variance of the sum has two parts. Other rows: from the covariance. Other seeds: the variance between the runs of
    a side, less what their different errors on these rows give it, which is in the first part already; never below zero.
    The quantile is Student's, of the runs' degrees of freedom where they spread more than rows explain, and soon the normal
    one where they do not: Satterthwaite (1946), with less trust in the spread of few runs.
    """
    weights = np.concatenate([np.full(runs, weight / runs) for weight, runs in sides])
    mean, seeds = float(weights @ scores), min(runs for _, runs in sides)
    from_rows = max(0.0, float(weights @ covariance @ weights))
    between = explained = squares = 0.0
    start = 0
    for weight, runs in sides:
        own = slice(start, start + runs)
        start += runs
        if seeds > 1:
            spread = float(scores[own].var(ddof=1)) * weight**2 / runs
            share = float(np.trace(covariance[own, own]) - covariance[own, own].sum() / runs) / (runs - 1)
            between, explained = between + spread, explained + share * weight**2 / runs
            squares += spread**2 / (runs - 1)
    variance = from_rows + max(0.0, between - explained)
    if math.isnan(mean + variance):
        return Difference(mean, math.nan, math.nan, math.nan, seeds)
    freedom = max(1.0, rows - 1.0)
    if squares > 0:
        own_freedom = between**2 / squares
        alike = min(10.0, max(1.0, (BELIEVED - LESS_OF_FEW / own_freedom) * explained / between))
        by_runs = max(between, explained)  # the rest of the variance is known from many rows
        freedom = min(freedom, own_freedom * alike**POWER * (variance / by_runs) ** (1 - 0.5 / own_freedom))
    error = math.sqrt(variance)
    far = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    p = 2 * float(stdtr(freedom, -far))
    half = float(stdtrit(freedom, 0.975)) * error
    # no paired test of so few rows can be surer: each may fall to either side
    return Difference(mean, mean - half, mean + half, min(1.0, max(p, 2.0 ** (1 - rows))), seeds)


def _rounded(p: float) -> str:
    return "0.001 or less" if p <= 0.001 else f"{p:.2g}"
