"""What we found: quality and size, always in one run beside the teacher and the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from potstill import anatomy
from potstill.batches import Source
from potstill.examples import Examples
from potstill.metrics import pearson
from potstill.networks import Run, bytes_of
from potstill.significance import bootstrap_interval, wilson
from potstill.tasks import Task

SCORED_AT_ONCE = 8192  # padded tokens


def answers(run: Run, source: Source) -> np.ndarray:
    """(n, classes) logits in the order of the examples."""
    found: np.ndarray | None = None
    for positions, batch in source.in_order(SCORED_AT_ONCE):
        logits = run(batch.student.inputs)
        if found is None:
            found = np.empty((len(source.examples), logits.shape[1]), np.float32)
        found[positions] = logits
    return found if found is not None else np.empty((0, source.task.classes), np.float32)


def quality(task: Task, examples: Examples, logits: np.ndarray, teacher: np.ndarray | None = None) -> dict[str, float]:
    """Scores and calibration over the labelled rows, and agreement with the teacher over all."""
    targets, said = labelled(examples, logits)
    scores: dict[str, float] = {"rows": len(targets)}
    if len(targets):
        scores |= task.score(targets, said)
        if task.outcome != "value":
            scores["calibration_error"] = task.calibration_error(targets, said)
    if teacher is not None:
        scores["agreement"] = agreement(task, logits, teacher)
    return scores


def details(task: Task, metric: str, examples: Examples, logits: np.ndarray) -> dict[str, Any]:
    """The chosen metric's 95 % interval; and for classes each one's quality, the confusion matrix (gold, answer) and the
    mean probabilities (gold, class)."""
    targets, said = labelled(examples, logits)
    if not len(targets):
        return {}
    found: dict[str, Any] = {"intervals": {metric: interval(task, metric, targets, said)}}
    if task.outcome == "class":
        gold = targets.astype(int)
        matrix = np.zeros((task.classes, task.classes), int)
        np.add.at(matrix, (gold, task.decode(said)), 1)
        probabilities = task.probabilities(said)
        mean = [
            probabilities[gold == one].mean(0) if (gold == one).any() else np.zeros(task.classes)
            for one in range(task.classes)
        ]
        found |= {"confusion": matrix.tolist(), "mean_probabilities": np.round(mean, 6).tolist()}
        found["per_class"] = {
            label: _of_class(matrix[one, one], matrix[one].sum(), matrix[:, one].sum())
            for one, label in enumerate(task.labels)
        }
    elif task.outcome == "classes":
        gold, held = targets.astype(bool), task.decode(said).astype(bool)
        found["per_class"] = {
            label: _of_class((gold & held)[:, one].sum(), gold[:, one].sum(), held[:, one].sum())
            for one, label in enumerate(task.labels)
        }
    return found


def interval(task: Task, metric: str, targets: np.ndarray, logits: np.ndarray) -> tuple[float, float]:
    """95 %: Wilson's for a share of rows, bootstrap for the rest."""
    if metric in ("accuracy", "exact"):
        right = task.right(targets, logits)
        return wilson(int(right.sum()), len(right))
    return bootstrap_interval(task.scorer(metric, targets, logits), len(targets))


def labelled(examples: Examples, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets and logits of the rows that have a label."""
    rows = examples.index
    there = np.asarray(examples.labelled[rows])
    return np.asarray(examples.targets[rows[there]]), logits[there]


def _of_class(right: int, there: int, said: int) -> dict[str, float]:
    return {
        "precision": float(right / said) if said else 0.0,
        "recall": float(right / there) if there else 0.0,
        "f1": float(2 * right / (there + said)) if there + said else 0.0,
        "rows": int(there),
    }


def agreement(task: Task, ours: np.ndarray, theirs: np.ndarray) -> float:
    """Share of rows with the same answer; for values, Pearson's correlation."""
    if task.outcome == "value":
        return pearson(theirs[:, 0], ours[:, 0])
    same = task.decode(ours) == task.decode(theirs)
    return float(same.mean() if same.ndim == 1 else same.all(1).mean())


def size(model: PreTrainedModel, folder: str | Path) -> dict[str, Any]:
    """Parameters, also by part, and the bytes of the weights in its folder."""
    parts = anatomy.parameters(model)
    total = sum(parts.values())
    return {"parameters": total, "parts": parts, "bytes": bytes_of(folder, total)}
