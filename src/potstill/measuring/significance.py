"""Is a difference more than chance? Intervals and paired tests, with the verdict in words.

All tests work on the rows themselves, so that two models are compared on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from potstill.measuring.measurements import Comparison
from potstill.tasks.metrics.labels import Score

RESAMPLES = 2000
SHOWN = 0.05  # the p below which a difference counts as shown
NO_DIFFERENCE = "no difference shown"
ONE_SEED = "one seed says nothing about the methods"
NOT_TESTED = "not tested, since models were selected on dev; give --test for a verdict"
# Where runs spread no more than rows explain, seeds matter little, or it is luck, as it often is with two or three runs.
# These constants decide how soon the former is believed. They were chosen by simulation; the levels are then 2.5 to 6.6 %
# (docs/measuring.md).
BELIEVED, LESS_OF_FEW, POWER = 2.0, 1.5, 20
TO_BE_SHOWN = 1.959964 + 0.841621  # standard errors: beyond the bound of 5 % in 80 % of the runs
SEED_DEVIATION = 0.003  # of a run's score beyond what rows explain, as seeds of one method usually have


def wilson(right: int, rows: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927), which is valid near 0 and 1 too."""
    if rows == 0:
        return 0.0, 1.0
    share, spread = right / rows, z * z / rows
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / rows + spread / (4 * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_interval(score: Score, rows: int, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of a score over the draws where it is defined; NaN where it never is."""
    random = np.random.default_rng(seed)
    drawn = np.array([score(random.integers(0, rows, rows)) for _ in range(RESAMPLES)])
    drawn = drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (math.nan, math.nan)
    return float(low), float(high)


def mcnemar_p(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the two-sided exact p that two models err equally often (McNemar 1947). Both: (rows,) bool, right answers.

    Only rows where exactly one model is right count; by chance each model has half of them.
    """
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    total, fewer = only_ours + only_theirs, min(only_ours, only_theirs)
    if total == 0:
        return 1.0
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


@dataclass(frozen=True)
class Difference:
    """Our score minus theirs on the same rows, with its 95 % interval. `seeds`: runs of the side that has fewer."""

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    smallest: float = math.nan  # true difference that is shown in 80 % of the runs

    @property
    def is_shown(self) -> bool:
        return self.p < SHOWN

    @property
    def words(self) -> str:
        """Return the verdict. One run per side compares two models, not the methods that made them."""
        if self.seeds > 1 and self.is_shown:
            return f"{'better' if self.mean > 0 else 'worse'}, p = {_rounded(self.p)}"
        if math.isnan(self.p):
            return "a score is undefined; not tested"
        verdict = "these two models differ" if self.is_shown else NO_DIFFERENCE
        return f"{verdict} (p = {_rounded(self.p)})" + (f"; {ONE_SEED}" if self.seeds < 2 else "")


def holm(ps: Sequence[float]) -> list[float]:
    """Correct the p values of comparisons that are reported together (Holm 1979). NaN: not tested."""
    order = sorted((place for place, p in enumerate(ps) if not math.isnan(p)), key=ps.__getitem__)
    correct_differences, reached = list(ps), 0.0
    for rank, place in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * ps[place]))
        correct_differences[place] = reached
    return correct_differences


def correct_comparisons(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct p for the number of tested comparisons and put the verdicts into words accordingly."""
    corrected = holm([math.nan if comparison.p is None else comparison.p for comparison in comparisons])
    tested = sum(not math.isnan(p) for p in corrected)
    return [
        comparison
        if comparison.p is None or comparison.seeds is None
        else replace(
            comparison,
            p_corrected=p,
            comparisons=tested,
            words=Difference(comparison.mean or 0.0, 0.0, 0.0, p, comparison.seeds).words,
        )
        for comparison, p in zip(comparisons, corrected, strict=True)
    ]


def correct_differences(differences: Sequence[Difference]) -> list[Difference]:
    """Correct p for the number of differences; intervals stay as they are."""
    corrected = holm([difference.p for difference in differences])
    return [replace(difference, p=p) for difference, p in zip(differences, corrected, strict=True)]


def paired(ours: Sequence[Score], theirs: Sequence[Score], rows: int, seed: int = 0) -> Difference:
    """Return the mean difference of two models' scores on the same rows, with one run per seed on each side."""
    return contrast([(1.0, ours), (-1.0, theirs)], rows, seed)


def contrast(sides: Sequence[tuple[float, Sequence[Score]]], rows: int, seed: int = 0) -> Difference:
    """Return the sum of weight × mean score over seeds, such as (a − b) − (c − d), with its 95 % interval and two-sided p.

    A side is the runs of one condition. A difference is shown only if it holds for other rows and for other seeds.
    """
    runs = [score for _, scores in sides for score in scores]
    every = np.arange(rows)
    shape = [(weight, len(scores)) for weight, scores in sides]
    return combined(shape, np.array([score(every) for score in runs]), row_covariance(runs, rows, seed), rows)


def row_covariance(runs: Sequence[Score], rows: int, seed: int = 0) -> np.ndarray:
    """Return the (runs, runs) covariance of the runs' scores over other rows, by bootstrap; NaN where it is undefined."""
    random = np.random.default_rng(seed)
    samples = (random.integers(0, rows, rows) for _ in range(RESAMPLES))
    drawn = np.array([[score(sample) for score in runs] for sample in samples])
    drawn = drawn[~np.isnan(drawn).any(1)]  # such as the correlation of rows with equal labels
    return np.atleast_2d(np.cov(drawn.T)) if len(drawn) > 1 else np.full((len(runs), len(runs)), np.nan)


def mean_interval(scores: Sequence[Score], rows: int, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a method's score over other rows and other seeds, from one run per seed."""
    mean = contrast([(1.0, scores)], rows, seed)
    return mean.low, mean.high


def combined(sides: Sequence[tuple[float, int]], scores: np.ndarray, covariance: np.ndarray, rows: int) -> Difference:
    """Combine the variance over rows and over seeds. `sides`: weight and number of runs; `scores`: (runs,) on all rows, in
    the order of the sides; `covariance`: (runs, runs) of these scores over other rows.

    The variance of the sum has two parts. Rows: from the covariance. Seeds: the variance between the runs of a side minus
    the part that different errors on these rows explain, which the first part holds already; never below zero.
    The quantile is Student's with the runs' degrees of freedom where they spread more than rows explain, and quickly
    approaches the normal one where they do not: Satterthwaite (1946), with less trust in the spread of few runs.
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
        by_runs = max(between, explained)  # the rest of the variance is estimated from many rows
        freedom = min(freedom, own_freedom * alike**POWER * (variance / by_runs) ** (1 - 0.5 / own_freedom))
    error = math.sqrt(variance)
    far = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    from scipy.special import stdtr, stdtrit  # here, so that `potstill list` shows studies without it

    p = 2 * float(stdtr(freedom, -far))
    half = float(stdtrit(freedom, 0.975)) * error
    # no paired test of so few rows can give a smaller p: each row may fall to either side
    least = min(1.0, max(p, 2.0 ** (1 - rows)))
    return Difference(mean, mean - half, mean + half, least, seeds, errors_to_be_shown(seeds) * error)


def errors_to_be_shown(seeds: int) -> float:
    """Return how many standard errors a true difference must have to be shown in 80 % of the runs.

    With few seeds the test knows little of their spread and must be careful. The second term was fitted to simulations of
    `combined`, to a tenth: with two seeds little is shown, with ten as much as if their spread were known.
    """
    return TO_BE_SHOWN * (1 + (2.8 * (seeds - 1) ** -2.4 if seeds > 1 else 0.0))


def smallest_difference(row_variance: float, rows: float, seeds: int) -> float:
    """Return the difference of two methods that a test file of so many rows shows in 80 % of the runs.

    `row_variance`: of a model's score over rows, times their number; p(1 − p) of an accuracy p. The errors of two runs
    are taken to correlate by one half, as those of students of one shape do: then their difference varies over rows as
    much as one score. One run of each shows only that two models differ, so that the spread of seeds does not count.
    """
    of_seeds = 2 * SEED_DEVIATION**2 / seeds if seeds > 1 else 0.0
    return errors_to_be_shown(seeds) * math.sqrt(row_variance / (rows * seeds) + of_seeds)


def _rounded(p: float) -> str:
    return "0.001 or less" if p <= 0.001 else f"{p:.2g}"
