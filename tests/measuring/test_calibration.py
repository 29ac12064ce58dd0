"""A fitted temperature is the one that made the labels, and what is said of a model's certainty is what scipy says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import entropy

from potstill.inference.answers import Predicted
from potstill.measuring.calibration import fit_temperature, how_sure
from potstill.tasks.answer import QuestionAnswering
from potstill.tasks.classify import TextClassification
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.task import Task


def drawn(temperature: float, rows: int = 6000, classes: int = 4, seed: int = 0) -> Predicted:
    """Labels that these logits, divided by the temperature, make exactly as probable as they are."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (rows, classes)).astype(np.float32)
    chances = softmax(logits / temperature, -1).cumsum(-1)
    targets = (random.random((rows, 1)) > chances).sum(-1)
    return Predicted(logits, targets.astype(np.float32), np.ones(rows, bool))


def in_parts(whole: Predicted, *sizes: int) -> list[Predicted]:
    ends = np.cumsum(sizes)
    columns = (np.split(each, ends) for each in (whole.logits, whole.targets, whole.labelled))
    return [Predicted(*part) for part in zip(*columns, strict=True)]


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.7])
def test_the_temperature_of_the_labels_is_found(temperature: float) -> None:
    whole = drawn(temperature)
    found = fit_temperature([whole], "class")
    assert found == pytest.approx(temperature, rel=0.06)
    assert fit_temperature(in_parts(whole, 100, 2000), "class") == pytest.approx(found, rel=1e-5)
    places = np.arange(len(whole.targets)), whole.targets.astype(int)
    losses = [-log_softmax(whole.logits / (found * near), -1)[places].mean() for near in (0.97, 1, 1.03)]
    assert losses[1] == min(losses)


def test_rows_without_a_label_and_impossible_classes_change_nothing() -> None:
    whole = drawn(2.0)
    wider = np.concatenate([whole.logits, np.full((len(whole.logits), 2), -np.inf, np.float32)], 1)
    expected = fit_temperature([whole], "class")
    assert fit_temperature([Predicted(wider, whole.targets, whole.labelled)], "class") == pytest.approx(
        expected, rel=1e-4
    )
    half = np.arange(len(whole.targets)) % 2 == 0
    some = Predicted(whole.logits, np.where(half, whole.targets, 0), half)
    of_half = Predicted(whole.logits[half], whole.targets[half], half[half])
    assert fit_temperature([some], "class") == fit_temperature([of_half], "class")


def test_labels_that_exclude_no_other_are_each_a_prediction() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(0, 3, (3000, 3)).astype(np.float32)
    targets = (random.random(logits.shape) < 1 / (1 + np.exp(-logits / 1.8))).astype(np.float32)
    found = fit_temperature([Predicted(logits, targets, np.ones(3000, bool))], "classes")
    assert found == pytest.approx(1.8, rel=0.06)


def test_a_model_that_is_always_right_does_not_become_certain() -> None:
    """The labels alone would be most probable at 0; of more rows, more is believed."""
    found = []
    for rows in (50, 5000):
        logits = np.tile([[2.0, 0.0]], (rows, 1))
        found.append(fit_temperature([Predicted(logits, np.zeros(rows), np.ones(rows, bool))], "class"))
    assert 0.2 < found[1] < found[0] < 1
    assert 1 - softmax([2 / found[0], 0])[0] == pytest.approx(0.5 / 51, rel=0.01)  # half of the added prediction


def test_how_sure_it_is_is_counted_over_all_predictions() -> None:
    whole = drawn(1.5, 500)
    labelled = np.arange(500) % 3 == 0
    found = how_sure(in_parts(Predicted(whole.logits, whole.targets, labelled), 200), "class")
    probabilities = softmax(whole.logits.astype(float), -1)
    right = (whole.logits.argmax(-1) == whole.targets)[labelled]
    expected = {
        "sure": probabilities.max(-1).mean(),
        "unsure": (probabilities.max(-1) < 0.9).mean(),
        "entropy": entropy(probabilities, axis=1).mean(),
        "right": right.mean(),
    }
    assert found == pytest.approx(expected)
    nothing = Predicted(whole.logits, whole.targets, np.zeros(500, bool))
    assert "right" not in how_sure([nothing], "class")


def test_of_numbers_the_error_is_known_and_of_labels_every_yes_and_no() -> None:
    values = Predicted(np.array([[1.0], [3.0], [9.0]]), np.array([0.0, 1.0, 0.0]), np.array([True, True, False]))
    assert how_sure([values], "value") == {"error": pytest.approx(np.sqrt((1 + 4) / 2))}
    sets = Predicted(np.array([[3.0, -1.0]]), np.array([[1.0, 1.0]]), np.array([True]))
    yes = 1 / (1 + np.exp(-np.array([3.0, 1.0])))
    found = how_sure([sets], "classes")
    assert (found["sure"], found["right"], found["unsure"]) == pytest.approx((yes.mean(), 0.5, 0.5))
    assert found["entropy"] == pytest.approx(np.mean([entropy([one, 1 - one]) for one in yes]))


LABELS = ("a", "b", "c")
TASKS: list[tuple[Task, tuple[int, ...]]] = [
    (TextClassification(LABELS), (40, 3)),
    (MultiLabelClassification(LABELS), (40, 3)),
    (QuestionAnswering(), (40, 20, 5)),
]


@pytest.mark.parametrize(("task", "shape"), TASKS)
def test_a_temperature_changes_probabilities_and_no_prediction(task: Task, shape: tuple[int, ...]) -> None:
    outputs = np.abs(np.random.default_rng(0).normal(0, 4, shape))
    if task.name == "multilabel":
        outputs -= 3
    if task.name == "answer":  # candidates, best first
        outputs[..., 2] = -np.sort(-outputs[..., 2])
    hot: Any = replace(task, temperature=3.0)
    assert np.array_equal(task.decode(outputs), hot.decode(outputs)) and hot == task
    scaled = outputs / 3 if task.name != "answer" else outputs * [1, 1, 1 / 3, 1, 1]
    assert hot.probabilities(outputs) == pytest.approx(task.probabilities(scaled))
    assert hot.confidence(outputs).mean() < task.confidence(outputs).mean()
