"""Metrics against scikit-learn, scipy and seqeval, the SQuAD rules by hand, and what must hold for any input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.tasks.metrics import labels as metrics
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.tag import TokenClassification
from tests.support.scoring import answer_scores, class_scores, entity_scores

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "dev" / "glue_metrics.json"

classes = st.integers(0, 3)
class_pairs = st.lists(st.tuples(classes, classes), min_size=1, max_size=30)
binary_pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
# few distinct values, so that ties and constants come up
number_pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30)


def tag_sentences(prefixes: str) -> st.SearchStrategy[list[list[str]]]:
    tag = st.one_of(st.just("O"), st.builds("{}-{}".format, st.sampled_from(prefixes), st.sampled_from(["PER", "B-C"])))
    bare = st.one_of(tag, tag, tag, st.sampled_from(prefixes))
    return st.lists(st.lists(bare, min_size=1, max_size=8), min_size=1, max_size=3)


@settings(deadline=None, max_examples=50)  # the first call imports scikit-learn
@given(class_pairs)
def test_classification_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    reference = pytest.importorskip("sklearn.metrics")
    labels, predictions = (list(side) for side in zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, about classes that never occur
        expected = {
            "accuracy": reference.accuracy_score(labels, predictions),
            "macro": reference.f1_score(labels, predictions, average="macro", zero_division=0),
            "micro": reference.f1_score(labels, predictions, average="micro", zero_division=0),
            "matthews": reference.matthews_corrcoef(labels, predictions),
        }
    assert class_scores(labels, predictions)["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-12)
    assert metrics.f1(labels, predictions, average="macro") == pytest.approx(expected["macro"], abs=1e-12)
    assert metrics.f1(labels, predictions, average="micro") == pytest.approx(expected["micro"], abs=1e-12)
    assert metrics.matthews(labels, predictions) == pytest.approx(expected["matthews"], abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(binary_pairs)
def test_binary_scores_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    reference = pytest.importorskip("sklearn.metrics")
    labels, predictions = (list(side) for side in zip(*pairs, strict=True))
    expected = reference.precision_recall_fscore_support(labels, predictions, average="binary", zero_division=0)
    scores = class_scores(labels, predictions)
    assert (scores["precision"], scores["recall"]) == pytest.approx(expected[:2], abs=1e-12)
    assert metrics.f1(labels, predictions, average="binary") == pytest.approx(expected[2], abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_several_labels_per_example_are_scikit_learns(columns: int, rows: int, seed: int) -> None:
    reference = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(seed)
    # scikit-learn reads a single column as one label per example, which is another question
    labels, predictions = random.integers(0, 2, (2, rows, columns + 1))
    for average in ("macro", "micro"):
        expected = reference.f1_score(labels, predictions, average=average, zero_division=0)
        assert metrics.f1(labels, predictions, average=average) == pytest.approx(expected, abs=1e-12)
    expected = reference.accuracy_score(labels, predictions)
    task = MultiLabelClassification(tuple("abcde"[: columns + 1]))
    assert task.score(labels, predictions - 0.5)["exact"] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(number_pairs, st.floats(1e-150, 1e150))
def test_correlations_are_scipys_at_any_scale(pairs: list[tuple[int, int]], scale: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    labels, predictions = (np.asarray(side, dtype=float) for side in zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # ours must not warn, whatever comes
        ours = metrics.pearson(labels, predictions * scale), metrics.spearman(labels, predictions * scale)
    if len(set(labels)) == 1 or len(set(predictions)) == 1:
        assert all(map(math.isnan, ours))  # undefined, as scipy has it
    else:
        expected = stats.pearsonr(labels, predictions)[0], stats.spearmanr(labels, predictions)[0]
        assert ours == pytest.approx(expected, abs=1e-12)


def test_the_correlation_of_a_constant_that_is_no_binary_fraction_is_undefined() -> None:
    """The mean of many 0.1 is not 0.1; what is left of the subtraction must not be taken for a signal."""
    assert math.isnan(metrics.pearson([0.1] * 1000, np.arange(1000)))


def test_correlation_refuses_what_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="finite"):
        metrics.pearson([1.0, 2.0], [math.nan, 1.0])


@pytest.mark.parametrize("score", [metrics.f1, metrics.matthews, metrics.pearson, metrics.spearman, metrics.rmse])
def test_empty_or_unequal_sides_are_refused(score: Any) -> None:
    with pytest.raises(ValueError, match="no predictions"):
        score([], [])
    with pytest.raises(ValueError, match="differ in shape"):
        score([0, 1], [0])


def test_several_labels_are_not_scored_as_one_by_mistake() -> None:
    rows = [[0, 1], [1, 1]]
    with pytest.raises(ValueError, match="need f1"):
        metrics.matthews(rows, rows)
    with pytest.raises(ValueError, match="macro"):
        metrics.f1(rows, rows, average="binary")
    with pytest.raises(ValueError, match="'macro'"):
        metrics.f1([0, 1], [0, 1], average="weighted")  # type: ignore[arg-type]


def test_answers_by_the_rules_of_squad() -> None:
    questions = [
        ("An  APPLE, the", ["pear", "apple"]),  # articles, case, punctuation, spaces
        ("b c", ["b d", "x"]),  # one of two tokens on each side
        ("the", ["a"]),  # both empty: equal, but no token in common
        ("", ["x"]),
    ]
    scores = [metrics.answer_score(answer, golds) for answer, golds in questions]
    assert scores == [(True, 1.0), (False, 0.5), (True, 0.0), (False, 0.0)]


@given(st.lists(st.text("ab the.,", min_size=0, max_size=12), min_size=1, max_size=4), st.text("ab the.,", max_size=12))
def test_more_answers_never_lower_the_score(answers: list[str], prediction: str) -> None:
    few, more = metrics.answer_score(prediction, answers[:1]), metrics.answer_score(prediction, answers)
    assert more[0] >= few[0] and more[1] >= few[1]


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_entities_are_seqevals(data: st.DataObject) -> None:
    reference = pytest.importorskip("seqeval.metrics")
    sentences = tag_sentences("BIES")
    gold = data.draw(sentences)
    if data.draw(st.booleans()):
        predicted = [
            [data.draw(st.sampled_from([tag for ours in gold for tag in ours])) for _ in tags] for tags in gold
        ]
    else:
        drawn = data.draw(sentences)
        predicted = [(theirs * len(ours))[: len(ours)] for ours, theirs in zip(gold, drawn * len(gold), strict=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [
            getattr(reference, name)(gold, predicted, zero_division=0)
            for name in ("precision_score", "recall_score", "f1_score")
        ]
    ours = entity_scores(gold, predicted)
    assert [ours["precision"], ours["recall"], ours["f1"]] == pytest.approx(expected, abs=1e-12)


def test_entities_know_their_ends() -> None:
    tags = ["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]
    assert metrics.entities(tags) == [("PER", 0, 1), ("LOC", 3, 3), ("LOC", 4, 4)]


@pytest.mark.parametrize("tag", ["", "PER", "X-PER", "O-PER", "B-"])
def test_labels_that_are_not_tags_of_a_scheme_name_no_entities(tag: str) -> None:
    assert not TokenClassification(("O", "B-PER", tag)).finds_entities


def test_importing_metrics_is_cheap() -> None:
    heavy = "{'torch', 'sklearn', 'scipy'} & set(sys.modules)"
    code = f"import sys; from potstill.tasks.metrics import labels as metrics; metrics.spearman([1, 2], [2, 1]); print(sorted({heavy}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference numbers are not beside this folder")
def test_the_reference_numbers_are_reproduced() -> None:
    cases = json.loads(REFERENCE.read_text())["cases"]
    assert {case["kind"] for case in cases} == {"classification", "regression", "squad_v1.1", "ner"}
    for case in cases:
        given_, expected = case["inputs"], case["expected"]
        if case["kind"] == "classification":
            pair = given_["labels"], given_["predictions"]
            scores = class_scores(*pair)
            assert scores["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-12)
            assert metrics.matthews(*pair) == pytest.approx(expected["matthews"], abs=1e-12)
            assert metrics.f1(*pair, average="macro") == pytest.approx(expected["f1_macro"], abs=1e-12)
            if "precision" in expected:
                for name in ("precision", "recall"):
                    assert scores[name] == pytest.approx(expected[name], abs=1e-12)
                assert metrics.f1(*pair) == pytest.approx(expected["f1_positive_class_1"], abs=1e-12)
        elif case["kind"] == "regression":
            pair = given_["labels"], given_["predictions"]
            assert metrics.pearson(*pair) == pytest.approx(expected["pearson"], abs=1e-12)
            assert metrics.spearman(*pair) == pytest.approx(expected["spearman"], abs=1e-12)
        elif case["kind"] == "squad_v1.1":
            exact, f1 = answer_scores(given_["items"])
            assert 100 * np.mean(exact) == pytest.approx(expected["exact_match"], abs=1e-12)
            assert 100 * np.mean(f1) == pytest.approx(expected["f1"], abs=1e-12)
            assert exact == [question["exact"] for question in expected["per_question"]]
            assert f1 == pytest.approx([question["f1"] for question in expected["per_question"]], abs=1e-12)
        else:
            scores = entity_scores(given_["gold"], given_["predicted"])
            for name in ("precision", "recall", "f1"):
                assert scores[name] == pytest.approx(expected["default_conlleval_like"][name], abs=1e-12)
            for side in ("gold", "predicted"):
                found = [[list(entity) for entity in metrics.entities(tags)] for tags in given_[side]]
                assert found == expected[f"{side}_entities_type_first_last"]
