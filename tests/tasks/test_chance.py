"""A teacher that knows the task is used, one at chance is refused, and too few rows are called too few."""

from __future__ import annotations

import numpy as np
import pytest

from potstill.tasks.chance import Judgement, judge, near_chance
from potstill.tasks.classify import TextClassification
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.regress import Regression

TWO, MANY = TextClassification(("a", "b")), TextClassification(tuple(map(str, range(77))))
SETS, VALUE = MultiLabelClassification(tuple(map(str, range(40)))), Regression()
RUNS = 60


def one_hot(said: np.ndarray, classes: int = 2) -> np.ndarray:
    return 8.0 * np.eye(classes)[said]


def guessed(random: np.random.Generator, gold: np.ndarray, right: float, classes: int = 2) -> np.ndarray:
    """Logits of a teacher that is right in this share of the rows, and else says another class."""
    other = (gold + random.integers(1, classes, len(gold))) % classes
    return one_hot(np.where(random.random(len(gold)) < right, gold, other), classes)


def kinds(make: object, runs: int = RUNS) -> dict[str, float]:
    """Share of each verdict over `runs` draws."""
    found = [make(np.random.default_rng(seed)).kind for seed in range(runs)]  # type: ignore[operator]
    return {kind: found.count(kind) / runs for kind in ("knows", "chance", "unsure")}


def of_rows(rows: int, right: float, classes: int = 2) -> object:
    task = TWO if classes == 2 else MANY

    def draw(random: np.random.Generator) -> Judgement:
        gold = random.integers(0, classes, rows)
        return judge(task, [(gold.astype(np.float32), guessed(random, gold, right, classes))])

    return draw


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 10])
def test_a_perfect_teacher_is_never_refused(rows: int) -> None:
    assert kinds(of_rows(rows, 1.0))["chance"] == 0


@pytest.mark.parametrize(("rows", "right"), [(10, 0.8), (10, 0.9), (20, 0.8), (20, 0.9), (80, 0.75), (1000, 0.6)])
def test_a_good_teacher_is_not_refused_for_few_rows(rows: int, right: float) -> None:
    assert kinds(of_rows(rows, right), RUNS if rows < 500 else 10)["chance"] == 0


@pytest.mark.parametrize(("rows", "right", "classes"), [(80, 0.5, 2), (300, 0.5, 2), (1000, 0.5, 2), (200, 1 / 77, 77)])
def test_a_teacher_at_chance_is_refused(rows: int, right: float, classes: int) -> None:
    assert kinds(of_rows(rows, right, classes), RUNS if rows < 500 else 10)["chance"] >= 0.9


def test_a_teacher_of_many_classes_is_known_by_few_rows() -> None:
    assert kinds(of_rows(40, 0.3, 77))["knows"] >= 0.95


def test_always_the_larger_class_is_no_skill_and_answers_against_the_labels_are_told() -> None:
    gold = (np.random.default_rng(0).random(500) < 0.9).astype(int)
    targets = gold.astype(np.float32)
    assert "near chance" in str(near_chance(judge(TWO, [(targets, one_hot(np.ones(500, int)))])))
    assert near_chance(judge(TWO, [(targets, one_hot(gold))])) is None
    assert "wrong order" in str(near_chance(judge(TWO, [(targets, one_hot(1 - gold))])))


def rare(random: np.random.Generator, rows: int = 100) -> Judgement:
    """2 % positives, found with precision and recall of 0.6."""
    gold = (random.random(rows) < 0.02).astype(int)
    said = np.where(gold == 1, random.random(rows) < 0.6, random.random(rows) < 0.02 * 0.4 / 0.98).astype(int)
    return judge(TWO, [(gold.astype(np.float32), one_hot(said))])


def test_rare_positives_do_not_refuse_a_good_teacher() -> None:
    assert kinds(rare)["chance"] <= 0.02
    assert kinds(lambda random: rare(random, 1000), 20)["knows"] >= 0.95


@pytest.mark.parametrize(("known", "verdict"), [(True, "knows"), (False, "chance")])
def test_a_teacher_that_only_ranks_is_used_if_it_ranks_well(known: bool, verdict: str) -> None:
    """It says the larger class always, but gives the rare one more where it is."""

    def draw(random: np.random.Generator) -> Judgement:
        gold = (random.random(1000) < 0.05).astype(int)
        surer = random.normal(size=1000) + (1.5 * gold if known else 0.0)
        return judge(TWO, [(gold.astype(np.float32), np.stack([np.full(1000, 6.0), surer], 1))])

    assert kinds(draw, 20)[verdict] >= 0.95


def label_sets(random: np.random.Generator, known: bool, rows: int = 300) -> Judgement:
    """5 usual labels of 40; the rare ones are never said. Without knowledge the usual ones are said at their rates."""
    rates = np.array([0.3] * 5 + [0.01] * 35)
    gold = random.random((rows, 40)) < rates
    seen = gold if known else gold[random.permutation(rows)]
    said = np.where(seen, random.random((rows, 40)) < 0.75, random.random((rows, 40)) < 0.1)
    said[:, 5:] = False
    return judge(SETS, [(gold.astype(np.float32), np.where(said, 4.0, -4.0))])


def test_rare_labels_that_are_never_said_do_not_refuse_a_teacher_of_label_sets() -> None:
    assert kinds(lambda random: label_sets(random, True), 20)["knows"] == 1
    assert kinds(lambda random: label_sets(random, True, 10), 40)["chance"] == 0
    assert kinds(lambda random: label_sets(random, False), 20)["chance"] >= 0.9


@pytest.mark.parametrize(
    ("rows", "noise", "verdict"), [(200, 1.0, "knows"), (8, 0.5, "not refused"), (200, None, "chance")]
)
def test_numbers_are_told_from_chance(rows: int, noise: float | None, verdict: str) -> None:
    def draw(random: np.random.Generator) -> Judgement:
        gold = random.normal(size=rows)
        said = random.normal(size=rows) if noise is None else gold + noise * random.normal(size=rows)
        return judge(VALUE, [(gold, said[:, None])])

    found = kinds(draw, 20)
    assert found["chance"] == 0 if verdict == "not refused" else found[verdict] >= 0.9


def test_one_class_alone_says_nothing_and_more_rows_are_judged_together() -> None:
    ones = np.ones(100, int)
    told = judge(TWO, [(ones.astype(np.float32), one_hot(ones))])
    assert told.kind == "unsure" and near_chance(told) is None
    zeros = np.zeros(100, int)
    both = [(ones.astype(np.float32), one_hot(ones)), (zeros.astype(np.float32), one_hot(zeros))]
    assert judge(TWO, both).kind == "knows"
