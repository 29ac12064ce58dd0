"""The share of the gap is Fieller's for one seed, and its interval holds the true share as often as it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from potstill.measuring.comparisons import Predictions, with_tests
from potstill.measuring.gap import closed_gap, gap_of_scores
from potstill.measuring.measurements import ClosedGap, Measurements, Place
from potstill.reporting.page import write_report
from potstill.reporting.sentences import gap_sentences, verdicts
from potstill.tasks.classify import TextClassification
from tests.support.run_folders import measurements, write_run

TWO = TextClassification(("negative", "positive"), {"negative": 0, "positive": 1})
TOSSED = 0.25  # share of rows on which every run tosses a coin of its own


def right_answers(random: np.random.Generator, rows: int, accuracies: list[float]) -> np.ndarray:
    """(rows, runs) of 0 and 1: runs of these accuracies, which differ on a quarter of the rows."""
    kind = random.random(rows)[:, None]
    tossed = (np.array(accuracies) - 0.7) / TOSSED  # all know 70 % of the rows
    return (random.random((rows, len(accuracies))) < np.where(kind < TOSSED, tossed, kind < TOSSED + 0.7)).astype(float)


def of_means(right: np.ndarray, runs: tuple[int, int, int]) -> ClosedGap:
    """By the known covariance of means, so that nothing is drawn."""
    return gap_of_scores(runs, right.mean(0), np.cov(right.T, ddof=0) / len(right), len(right))


def test_with_one_seed_it_is_fiellers_interval() -> None:
    right = right_answers(np.random.default_rng(1), 900, [0.86, 0.83, 0.91])
    found = of_means(right, (1, 1, 1))
    ours, baseline, teacher = right.T
    d, g = ours - baseline, teacher - baseline
    (dd, dg), (_, gg) = np.cov(d, g, ddof=0) / len(right)
    q2 = student.ppf(0.975, len(right) - 1) ** 2
    ends = np.sort(np.roots([g.mean() ** 2 - q2 * gg, -2 * (d.mean() * g.mean() - q2 * dg), d.mean() ** 2 - q2 * dd]))
    assert found.share == pytest.approx(d.mean() / g.mean()) and found.gap == pytest.approx(g.mean())
    assert (found.low, found.high) == pytest.approx(tuple(ends), abs=1e-5)


def test_without_a_shown_gap_there_is_no_share() -> None:
    random = np.random.default_rng(2)
    for teacher in (0.851, 0.82):  # a little better, and worse
        found = of_means(right_answers(random, 900, [0.87, 0.85, teacher]), (1, 1, 1))
        assert found == ClosedGap(found.gap)
    same = np.repeat(right_answers(random, 90, [0.85]), 3, 1)
    assert of_means(same, (1, 1, 1)) == ClosedGap(0.0)


@pytest.mark.parametrize(("seeds", "deviation"), [(1, 0.0), (3, 0.003), (5, 0.006)])
def test_the_interval_holds_the_true_share(seeds: int, deviation: float) -> None:
    """0.4 of six points. The teacher is one model, the same in every seed."""
    random, covered = np.random.default_rng([3, seeds]), []
    for _ in range(250):
        accuracies = [score + random.normal(0, deviation) for score in (0.874, 0.85) for _ in range(seeds)]
        right = right_answers(random, 1800, [*accuracies, 0.91])
        right = np.concatenate([right, *[right[:, -1:]] * (seeds - 1)], 1)
        found = of_means(right, (seeds, seeds, seeds))
        covered.append(found.low <= 0.4 <= found.high)  # type: ignore[operator]
    assert 0.915 < np.mean(covered) < 0.99


def predicted(right: np.ndarray) -> Predictions:
    """(rows, seeds) of right and wrong answers to rows of class 1."""
    return Predictions(TWO, "accuracy", np.ones(len(right)), [np.stack([1 - each, each], 1) for each in right.T])


def test_a_run_has_it_for_its_first_metric_on_its_first_test_set() -> None:
    right = right_answers(np.random.default_rng(4), 600, [0.87, 0.88, 0.84, 0.85, 0.91, 0.91])
    sides = {"distilled": right[:, :2], "fine-tuned": right[:, 2:4], "teacher": right[:, [4, 4]]}
    read = Measurements.from_json(measurements(seeds=2))
    found = with_tests(read, {(name, "task", "test"): predicted(each) for name, each in sides.items()})
    gap = found.models["distilled"].gap(Place("task", "test", "accuracy"))
    assert gap is not None and gap.share is not None
    ours, baseline, teacher = (each.mean() for each in sides.values())
    assert gap.share == pytest.approx((ours - baseline) / (teacher - baseline))
    scores = [[lambda rows, seed=seed: float(seed[rows].mean()) for seed in each.T] for each in sides.values()]
    assert gap == closed_gap(*scores, 600)
    assert Measurements.from_json(found.to_json()) == found
    on_dev = {(name, "task", "dev"): predicted(each) for name, each in sides.items()}
    assert with_tests(read, on_dev).models["distilled"].closed_gap == {}


def with_gap(gap: ClosedGap, name: str = "kd") -> Measurements:
    read = Measurements.from_json(measurements(name, seeds=3))
    student = replace(read.models["distilled"], closed_gap={"task": {"test": gap}})
    return replace(read, models={**read.models, "distilled": student})


def test_it_is_said_with_its_interval_or_with_why_it_is_not_defined() -> None:
    words = "It closes 44 % of the gap between fine-tuning and the teacher (95 % interval 21 to 70 %)."
    assert words in verdicts(with_gap(ClosedGap(0.05, 0.44, 0.21, 0.7)))
    assert gap_sentences(with_gap(ClosedGap(0.004))) == [
        "The share of the gap closed is not defined: the teacher is not shown to be better than fine-tuning (+0.4 points)."
    ]
    assert gap_sentences(Measurements.from_json(measurements())) == []


def test_several_runs_have_it_side_by_side(tmp_path: Path) -> None:
    runs = []
    for name, share in (("kd", 0.1), ("patient", 0.44)):
        found = with_gap(ClosedGap(0.05, share, share - 0.2, share + 0.25), name).to_json()
        runs.append(write_run(tmp_path / name, found, logs=False))
    page = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "of the gap" in page and "24 to 69" in page and "<b>44</b>" in page
    assert page.count("of the gap between fine-tuning and the teacher") == 2
