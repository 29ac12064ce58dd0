"""What is said of a teacher follows from its figures, and names one thing that would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from potstill.measuring.measurements import Comparison, Measurements, TeacherKnowledge, TeacherRows
from potstill.reporting.card import model_card
from potstill.reporting.knowledge import expectations, most_helpful
from potstill.reporting.sentences import difference_words
from tests.support.run_folders import RECIPE, corrected, difference, measurements

BY_HEART = TeacherRows(300, 6920, right=0.988, sure=0.983, unsure=0.018, entropy=0.077)
ON_DEV = TeacherRows(300, 872, right=0.902, sure=0.970, unsure=0.065, entropy=0.105)
NEW = TeacherRows(300, 20_000, sure=0.93, unsure=0.12, entropy=0.2)
SST2 = TeacherKnowledge(2, {"train": BY_HEART, "dev": ON_DEV}, 1821, 0.0819)


def test_a_teacher_that_repeats_the_labels_is_said_to() -> None:
    facts, expected, shown, most = expectations(SST2, 3)
    assert facts == (
        "What the teacher knows (2 classes): on train 98.8 % right and 0.98 sure; on dev 90.2 % right and 0.97 sure."
    )
    assert expected.startswith(
        "On its own rows this teacher repeats the labels: distilling on them alone usually closes"
    )
    assert shown == "The test file of 1,821 rows and 3 seeds can show a difference of about 2.0 points."
    assert most.startswith("What would help most: rows of this kind without labels") and "--unlabelled FILE" in most


def test_other_rows_are_expected_to_teach_more() -> None:
    with_text = TeacherKnowledge(2, {**SST2.splits, "unlabelled": NEW}, 1821, 0.0819)
    words = " ".join(expectations(with_text, 3))
    assert "on rows without a label 0.93 sure" in words and "the 20,000 rows without a label" in words
    assert "repeats" not in words and "What would help most" not in words
    unsure = TeacherKnowledge(2, {"train": ON_DEV, "dev": ON_DEV})
    assert "say more than the labels do" in " ".join(expectations(unsure, 3))


def test_numbers_are_repeated_where_the_error_is_smaller_than_on_dev() -> None:
    for error, repeats in ((0.2, True), (0.5, False)):
        splits = {"train": TeacherRows(300, 5749, error=error), "dev": TeacherRows(300, 1500, error=0.55)}
        words = " ".join(expectations(TeacherKnowledge(None, splits), 1))
        assert f"on train an error (RMSE) of {error:.2f}; on dev an error (RMSE) of 0.55." in words
        assert ("repeats the labels" in words) is repeats


def test_one_thing_would_help_most() -> None:
    text = {"unlabelled": NEW}
    cases = {
        "rows of dev": TeacherKnowledge(
            2, {**SST2.splits, "dev": TeacherRows(40, 40, right=0.9, sure=0.9)}, 1821, 0.08
        ),
        "more of it": TeacherKnowledge(2, {**SST2.splits, "unlabelled": TeacherRows(300, 5000, sure=0.9)}, 1821, 0.08),
        "a larger test file": TeacherKnowledge(2, {**SST2.splits, **text}, 300, 0.08),
        "": TeacherKnowledge(2, {**SST2.splits, **text}, 5000, 0.08),
    }
    for words, knowledge in cases.items():
        found = most_helpful(knowledge, 3)
        assert words in found and bool(words) == bool(found)


def test_after_the_run_a_teacher_that_is_no_better_is_told() -> None:
    found = measurements(seeds=3)
    measured = Measurements.from_json(measurements(seeds=3))
    assert "better teacher" not in most_helpful(SST2, 3, measured)
    found["models"]["teacher"]["quality"]["task"]["test"]["accuracy"] = 0.86
    assert most_helpful(SST2, 3, Measurements.from_json(found)).startswith(
        "a better teacher, since this one is no better"
    )


def test_page_and_card_say_it_and_old_files_say_nothing() -> None:
    old = Measurements.from_json(measurements(seeds=3))
    assert old.teacher_knows == {} and "its teacher knew" not in model_card(old, RECIPE)
    new = replace(old, teacher_knows={"task": SST2})
    assert Measurements.from_json(new.to_json()) == new
    card = model_card(new, RECIPE)
    assert "## What its teacher knew" in card and "98.8 % right and 0.98 sure" in card


@pytest.mark.parametrize(("p", "says"), [(0.7, True), (0.001, False)])
def test_a_verdict_that_shows_nothing_says_what_it_would_show(p: float, says: bool) -> None:
    (found,) = corrected([difference("distilled", "fine-tuned", 0.01, p) | {"smallest": 0.0193}])
    words = difference_words(Comparison.from_json(found))
    assert words.endswith("; a difference of about 1.9 points would be shown") is says
