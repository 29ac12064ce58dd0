"""Intervals and tests give what scipy gives, and cover what they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from potstill.significance import Score, bootstrap_interval, mcnemar, paired, wilson


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
    assert mcnemar(ours, theirs) == pytest.approx(expected, abs=1e-9)


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
