"""Scores, 95 % intervals and sizes of models."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from potstill.data.examples import Examples
from potstill.measuring.significance import bootstrap_interval, wilson
from potstill.models import anatomy
from potstill.models.inference import bytes_of
from potstill.tasks.task import Task


def quality(
    task: Task,
    examples: Examples,
    predictions: np.ndarray,
    teacher: np.ndarray | None = None,
    plain: np.ndarray | None = None,
) -> dict[str, float | None]:
    """Return scores and calibration error over the labelled rows, and agreement with the teacher over all rows.

    The calibration error is that at the task's temperature; if `plain` is given, the predictions as they are read at a
    temperature of 1, it is returned for them too. A score is None where it is undefined, such as the correlation of constant predictions.
    """
    targets, labelled_predictions = labelled(task, examples, predictions)
    scores: dict[str, float] = {"rows": len(targets)}
    if len(targets):
        scores |= task.score(targets, labelled_predictions)
        if (error := task.calibration_error(targets, labelled_predictions)) is not None:
            scores["calibration_error"] = error
        if plain is not None and task.temperature != 1:
            before = replace(task, temperature=1.0).calibration_error(*labelled(task, examples, plain))
            scores |= {} if before is None else {"calibration_error_before": before}
    if teacher is not None and (agreement := task.agreement(predictions, teacher)) is not None:
        scores["agreement"] = agreement
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def details(task: Task, metric: str, examples: Examples, predictions: np.ndarray) -> dict[str, Any]:
    """Return the 95 % interval of a metric and the task's scores per class, such as the confusion matrix."""
    targets, predictions = labelled(task, examples, predictions)
    if not len(targets):
        return {}
    low, high = interval(task, metric, targets, predictions)
    return {"intervals": {} if math.isnan(low) else {metric: (low, high)}, **task.details(targets, predictions)}


def interval(task: Task, metric: str, targets: np.ndarray, predictions: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a metric: Wilson's for a share of rows, a bootstrap interval otherwise."""
    if metric in task.row_metrics:
        right = task.is_correct(targets, predictions)
        return wilson(int(right.sum()), len(right))
    return bootstrap_interval(task.scorer(metric, targets, predictions), len(targets))


def labelled(task: Task, examples: Examples, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and predictions of the rows that have a label."""
    has_label = np.asarray(examples.labelled[examples.index])
    return task.golds(examples)[has_label], predictions[has_label]


def size(model: PreTrainedModel, folder: str | Path) -> dict[str, Any]:
    """Return the number of parameters, in total and by part, and the bytes of the weights in the model's folder."""
    parts = anatomy.parameters(model)
    total = sum(parts.values())
    return {"parameters": total, "parts": parts, "bytes": bytes_of(folder, total)}
