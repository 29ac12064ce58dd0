"""Scores of classes, tags and answers, as the tasks report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from potstill.tasks.classify import TextClassification
from potstill.tasks.metrics.labels import answer_score
from potstill.tasks.tag import ABSENT, TokenClassification


def class_scores(labels: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Every metric of classification, and precision and recall of class 1."""
    classes = max(*labels, *predictions, 1) + 1
    task = TextClassification(tuple(map(str, range(classes))))
    scored = np.array(labels), np.eye(classes)[list(predictions)]
    quality = task.details(*scored)["per_class"]["1"]
    return task.score(*scored) | {"precision": quality["precision"], "recall": quality["recall"]}


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    task = TokenClassification(tuple(sorted({"O"}.union(*gold, *predicted))))
    targets, classes = (np.full((len(gold), max(map(len, gold))), ABSENT) for _ in range(2))
    for place, sides in enumerate(zip(gold, predicted, strict=True)):
        for array, tags in zip((targets, classes), sides, strict=True):
            array[place, : len(tags)] = [task.labels.index(tag) for tag in tags]
    return task.score(targets, np.stack([classes, np.ones_like(classes)], -1))


def answer_scores(items: Sequence[Mapping[str, Any]]) -> tuple[list[bool], list[float]]:
    """Exact match and F1 of each question; one without a prediction counts as wrong, as in the official script of SQuAD."""
    answers = [(item.get("prediction"), item["answers"]) for item in items]
    scores = [(False, 0.0) if answer is None else answer_score(answer, golds) for answer, golds in answers]
    exact, f1 = map(list, zip(*scores, strict=True))
    return exact, f1
