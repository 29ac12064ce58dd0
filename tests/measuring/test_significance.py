"""Intervals and tests give what scipy gives, and cover what they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from potstill.measuring.measurements import Comparison
from potstill.measuring.significance import (
    ONE_SEED,
    SEED_DEVIATION,
    Difference,
    bootstrap_interval,
    combined,
    contrast,
    correct_comparisons,
    holm,
    mcnemar_p,
    mean_interval,
    paired,
    row_covariance,
    smallest_difference,
    wilson,
)
from potstill.tasks.metrics.labels import Score


@given(st.integers(1, 3000), st.floats(0, 1))
def test_wilson_is_scipys(rows: int, share: float) -> None:
    right = round(share * rows)
    expected = binomtest(right, rows).proportion_ci(method="wilson")
    assert wilson(right, rows) == pytest.approx((expected.low, expected.high), abs=1e-6)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 50))
def test_mcnemar_is_the_exact_sign_test(only_ours: int, only_theirs: int, both: int) -> None:
    ours = np.array([True] * only_ours + [False] * only_theirs + [True] * both, bool)
    theirs = np.array([False] * only_ours + [True] * only_theirs + [True] * both, bool)
    several = only_ours + only_theirs
    expected = binomtest(only_ours, several).pvalue if several else 1.0
    assert mcnemar_p(ours, theirs) == pytest.approx(expected, abs=1e-9)


def test_a_bootstrap_interval_of_a_mean_is_near_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 400)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.04)


def scores(seeds: list[np.ndarray]) -> list[Score]:
    return [lambda rows, values=values: float(values[rows].mean()) for values in seeds]


def test_a_real_difference_is_shown_and_none_is_not() -> None:
    random = np.random.default_rng(2)
    hard = random.random(1800)  # how hard each row is: models err on the same ones
    seeds = [
        scores([(hard + 0.05 * random.normal(size=1800) < bound).astype(float) for _ in range(3)])
        for bound in (0.90, 0.86, 0.86)
    ]
    better = paired(seeds[0], seeds[1], 1800)
    assert better.words.startswith("better, p = ") and better.low > 0 and better.mean == pytest.approx(0.04, abs=0.02)
    assert paired(seeds[1], seeds[0], 1800).words.startswith("worse")
    assert paired(seeds[1], seeds[2], 1800).words.startswith("no difference shown")


def test_one_lucky_seed_shows_nothing() -> None:
    """Three seeds that differ among themselves by more than the two methods do."""
    random = np.random.default_rng(3)
    noisy = [
        scores([(random.random(1800) < share).astype(float) for share in shares])
        for shares in ((0.80, 0.86, 0.90), (0.79, 0.85, 0.88))
    ]
    assert paired(noisy[0], noisy[1], 1800).words.startswith("no difference shown")


def right_answers(
    random: np.random.Generator, rows: int, seeds: int, deviations: tuple[float, float], gain: float = 0.0
) -> np.ndarray:
    """(rows, 2 × seeds) of 0 and 1: two methods of 85 % accuracy. Any two runs of one accuracy disagree on 10 % of the rows, and
    the true accuracy of a run varies with the deviation of its method; the first method has `gain` more. All in points."""
    kind = random.random(rows)[:, None]  # a fifth of the rows are tosses of a coin, a twentieth nobody knows
    points = np.concatenate([random.normal(0, deviation, seeds) for deviation in deviations])
    points[:seeds] += gain
    chance = np.where(kind < 0.2, 0.5 + points / 20, kind > 0.25)
    return (random.random((rows, 2 * seeds)) < chance).astype(float)


def of_means(right: np.ndarray, sides: list[tuple[float, int]]) -> Difference:
    """By the project's own `combined`; the covariance of means over rows is known, so that nothing is drawn."""
    return combined(sides, right.mean(0), np.cov(right.T, ddof=0) / len(right), len(right))


def share_shown(
    rows: int, seeds: int, deviations: tuple[float, float], times: int, gain: float = 0.0, seed: int = 0
) -> float:
    """How often a difference is shown, in percent."""
    random = np.random.default_rng([seed, rows, seeds])
    sides = [(1.0, seeds), (-1.0, seeds)]
    drawn = (right_answers(random, rows, seeds, deviations, gain) for _ in range(times))
    return 100 * float(np.mean([of_means(one, sides).is_shown for one in drawn]))


def coverage(rows: int, seeds: int, deviation: float, times: int) -> float:
    """How often the interval of the mean over seeds holds the true 85 %."""
    random = np.random.default_rng([1, rows, seeds])
    drawn = (right_answers(random, rows, seeds, (deviation, deviation))[:, :seeds] for _ in range(times))
    found = [of_means(one, [(1.0, seeds)]) for one in drawn]
    return 100 * float(np.mean([one.low <= 0.85 <= one.high for one in found]))


@pytest.mark.parametrize(
    ("rows", "seeds", "deviation"), [(500, 2, 2), (1800, 2, 1), (1800, 3, 0), (1800, 3, 2), (500, 5, 1)]
)
def test_where_nothing_differs_seldom_more_than_five_percent_are_shown(rows: int, seeds: int, deviation: float) -> None:
    """At any deviation of the seeds, which nobody knows beforehand; 800 simulations are right to about 0.8 points."""
    assert 2.0 < share_shown(rows, seeds, (deviation, deviation), 800) < 8.0


def test_seeds_that_agree_show_what_there_is() -> None:
    """What the percentile bootstrap over rows and seeds showed of the same runs: 26 and 60 %."""
    assert share_shown(1800, 3, (0.3, 0.3), 600, gain=1.0) > 33
    assert share_shown(1800, 3, (0.3, 0.3), 600, gain=1.5) > 57


@pytest.mark.parametrize(("seeds", "deviation"), [(2, 1), (2, 2), (3, 0), (3, 2)])
def test_the_interval_of_a_mean_holds_the_method_s_score(seeds: int, deviation: float) -> None:
    assert 92.0 < coverage(1800, seeds, deviation, 600) < 99.0


LEVELS = [(rows, seeds, sd) for rows in (500, 1800) for seeds in (2, 3, 5, 10) for sd in (0, 0.3, 0.5, 1, 2)]


@pytest.mark.slow
def test_levels_power_and_coverage_are_what_the_page_says() -> None:
    """The table of docs/measuring.md, printed with -s."""
    for rows, seeds, deviation in LEVELS:
        shown, held = share_shown(rows, seeds, (deviation,) * 2, 5000), coverage(rows, seeds, deviation, 5000)
        print(f"{rows} rows, {seeds} seeds, sd {deviation}: shown {shown:.1f}, mean covered {held:.1f}")
        assert 2.0 < shown < 7.5 and 92.5 < held < 98.5
    for seeds in (2, 3, 5):
        gains = [share_shown(1800, seeds, (0.3, 0.3), 5000, gain) for gain in (1.0, 1.5)]
        print(f"1800 rows, {seeds} seeds, sd 0.3: a gain of 1.0 is shown in {gains[0]:.1f}, of 1.5 in {gains[1]:.1f}")
    for seeds in (2, 3, 5):
        unlike = share_shown(1800, seeds, (0.3, 2.0), 5000)
        print(f"1800 rows, {seeds} seeds, sd 0.3 and 2: shown {unlike:.1f}")
        assert unlike < 10


def test_drawn_rows_vary_as_means_do() -> None:
    right = right_answers(np.random.default_rng(4), 1800, 3, (1.0, 1.0))
    drawn, known = row_covariance(scores(list(right.T)), 1800), np.cov(right.T) / 1800
    assert np.diag(drawn) == pytest.approx(np.diag(known), rel=0.12)
    assert drawn == pytest.approx(known, abs=0.1 * known.max())
    ours, theirs = right.T[:3], right.T[3:]
    exact = of_means(right, [(1.0, 3), (-1.0, 3)])
    assert paired(scores(list(ours)), scores(list(theirs)), 1800).p == pytest.approx(exact.p, abs=0.02)


def test_one_seed_is_a_verdict_about_two_models_and_never_about_methods() -> None:
    random = np.random.default_rng(5)
    right = right_answers(random, 1800, 1, (0, 0), gain=8.0)
    found = paired(scores([right[:, 0]]), scores([right[:, 1]]), 1800)
    assert found.words.startswith("these two models differ (p = 0.001 or less); ") and found.words.endswith(ONE_SEED)
    for p in (0.0, 0.01, 0.5):
        words = Difference(0.02, 0.01, 0.03, p, seeds=1).words
        assert ONE_SEED in words and "better" not in words
        assert ONE_SEED not in Difference(0.02, 0.01, 0.03, p, seeds=2).words


def test_a_model_that_is_the_same_in_every_seed_adds_no_spread() -> None:
    """A teacher: only the students' seeds count, and only they give degrees of freedom."""
    right = right_answers(np.random.default_rng(6), 1800, 3, (2.0, 0.0))
    right[:, 4:] = right[:, 3:4]
    alone = of_means(right[:, :4], [(1.0, 3), (-1.0, 1)])
    found = of_means(right, [(1.0, 3), (-1.0, 3)])
    assert found.mean == pytest.approx(alone.mean) and found.seeds == 3
    assert found.high - found.low > alone.high - alone.low  # one run on a side: rows alone


def test_conditions_are_no_seeds_of_each_other() -> None:
    """Two conditions of very different scores, of which both sides have one each: the gain is seen within each."""
    random = np.random.default_rng(7)
    right = [right_answers(random, 1800, 3, (0.2, 0.2), gain=3.0) for _ in range(2)]
    right[1][random.random(1800) < 0.2] = 0  # a hard condition
    sides = [
        (weight / 2, scores(list(one[:, place : place + 3].T))) for one in right for weight, place in ((1, 0), (-1, 3))
    ]
    assert contrast(sides, 1800).words.startswith("better")


def test_few_rows_are_never_sure() -> None:
    ours, theirs = scores([np.ones(4)]), scores([np.zeros(4)])
    assert paired(ours, theirs, 4).p == pytest.approx(0.125)


def test_a_score_that_is_undefined_is_not_tested() -> None:
    nothing: list[Score] = [lambda rows: float("nan")]
    found = paired(nothing, scores([np.ones(20)]), 20)
    assert found.words == "a score is undefined; not tested" and not found.is_shown
    assert all(np.isnan(mean_interval(nothing, 20)))


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_the_step_down_of_bonferroni(ps: list[float]) -> None:
    """By its definition: the largest of the smaller ones' p, each times how many are not smaller."""
    ordered = sorted(ps)
    expected = [
        min(1.0, max((len(ps) - rank) * q for rank, q in enumerate(ordered[: ordered.index(p) + 1]))) for p in ps
    ]
    assert holm(ps) == pytest.approx(expected)


def test_comparisons_of_one_page_are_corrected_together_and_say_so() -> None:
    tested = Comparison(
        model="a",
        against="b",
        data="task",
        split="test",
        metric="accuracy",
        mean=0.02,
        words="",
        low=0.001,
        high=0.04,
        p=0.03,
        seeds=3,
    )
    untested = replace(tested, p=None, words="not tested")
    corrected = correct_comparisons([tested, replace(tested, p=0.04), untested])
    assert [comparison.p_corrected for comparison in corrected] == [0.06, 0.06, None]
    assert corrected[0].words == "no difference shown (p = 0.06)" and corrected[0].comparisons == 2
    assert corrected[2] == untested


def of_half_alike_runs(random: np.random.Generator, rows: int, seeds: int, gain: float) -> Difference:
    """Of two methods of 85 % accuracy, one better by `gain`: right answers of any two runs correlate by one half, since
    they differ on the rows alone (a quarter, nearly) where each run tosses a coin of its own."""
    tossed, kind = 2 * 0.85 * 0.15, random.random(rows)[:, None]
    accuracy = random.normal(0, SEED_DEVIATION if seeds > 1 else 0, 2 * seeds)
    accuracy[:seeds] += gain
    chance = np.where(kind < tossed, 0.5 + accuracy / tossed, kind < 0.85 + tossed / 2)
    right = (random.random((rows, 2 * seeds)) < chance).astype(float)
    return of_means(right, [(1.0, seeds), (-1.0, seeds)])


@pytest.mark.parametrize(("rows", "seeds"), [(1800, 1), (6000, 2), (600, 3), (1800, 3), (1800, 5), (1800, 10)])
def test_the_smallest_difference_is_shown_in_four_of_five_runs(rows: int, seeds: int) -> None:
    """By the test itself, as a run makes it; half of that difference is shown much less often."""
    random = np.random.default_rng([8, rows, seeds])
    size = smallest_difference(0.85 * 0.15, rows, seeds)
    shown, half = (
        float(np.mean([of_half_alike_runs(random, rows, seeds, gain).is_shown for _ in range(500)]))
        for gain in (size, size / 2)
    )
    assert 0.75 < shown < 0.90 and half < 0.5


def test_a_comparison_says_the_size_that_was_foreseen() -> None:
    """On average over runs, since each run estimates its own spread."""
    random = np.random.default_rng(9)
    for seeds in (1, 3):
        found = [of_half_alike_runs(random, 1800, seeds, 0.0).smallest for _ in range(300)]
        assert np.mean(found) == pytest.approx(smallest_difference(0.85 * 0.15, 1800, seeds), rel=0.12)
