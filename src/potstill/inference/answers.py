"""What we found: quality and size, always in one run beside the teacher and the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import Source
from potstill.data.examples import Examples
from potstill.data.task import DataTask
from potstill.measuring.significance import bootstrap_interval, wilson
from potstill.models import anatomy
from potstill.models.inference import Run, bytes_of, torch_run
from potstill.models.student import Student
from potstill.signals import Batch
from potstill.tasks.task import Task

SCORED_AT_ONCE = 8192  # padded tokens
WRITTEN_AT_ONCE = 1024  # of models that write, which give as many numbers for each as the vocabulary has pieces

Ask = Callable[[Batch], np.ndarray]
"""A batch -> (predictions, classes) logits."""


def answers(ask: Ask, source: Source) -> np.ndarray:
    """What is said of each example, in their order: (n, …), as the task reads it, short answers filled with -1."""
    found: list[np.ndarray] = [np.empty(0)] * len(source.examples)
    for positions, batch in source.in_order(at_once(source.task)):
        rows = source.examples.index[positions]
        # of two readings that are cut differently the student's own counts
        said = source.task.read(ask(batch), source.readings[0], rows, source.examples)
        for position, one in zip(positions, said, strict=True):
            found[position] = one
    return filled(found) if found else np.empty((0, source.task.classes), np.float32)


def at_once(task: DataTask) -> int:
    """Padded tokens that go through a model together."""
    return WRITTEN_AT_ONCE if task.generates else SCORED_AT_ONCE


def said_by(student: Student, source: Source, beam: bool = False) -> np.ndarray:
    """What a model says, and writes where the task is to write; with `beam` also by beam search."""
    said = answers(network(torch_run(student.model)), source)
    if not source.task.decodes or not len(said):
        return said
    from potstill.inference.texts import with_texts

    return filled(with_texts(said, student, source, beam))


def filled(arrays: list[np.ndarray]) -> np.ndarray:
    """One array of several, (n, …): where the first axis is shorter than the longest, -1."""
    longest = max(len(one) for one in arrays)
    if all(len(one) == longest for one in arrays):
        return np.stack(arrays)
    together = np.full((len(arrays), longest, *arrays[0].shape[1:]), -1, np.float32)
    for place, one in enumerate(arrays):
        together[place, : len(one)] = one
    return together


def network(run: Run) -> Ask:
    """A network's logits for the student's reading of a batch."""
    return lambda batch: batch.student.predictions(torch.from_numpy(run(batch.student.inputs))).numpy()


def quality(
    task: Task, examples: Examples, said: np.ndarray, teacher: np.ndarray | None = None
) -> dict[str, float | None]:
    """Scores and calibration over the labelled rows, and agreement with the teacher over all, where there is any.

    None: undefined, such as the correlation of answers that are all the same.
    """
    targets, labelled_said = labelled(task, examples, said)
    scores: dict[str, float] = {"rows": len(targets)}
    if len(targets):
        scores |= task.score(targets, labelled_said)
        if (error := task.calibration_error(targets, labelled_said)) is not None:
            scores["calibration_error"] = error
    if teacher is not None and (same := task.agreement(said, teacher)) is not None:
        scores["agreement"] = same
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def details(task: Task, metric: str, examples: Examples, said: np.ndarray) -> dict[str, Any]:
    """The chosen metric's 95 % interval, and what the task has to tell of each class."""
    targets, said = labelled(task, examples, said)
    if not len(targets):
        return {}
    ends = interval(task, metric, targets, said)
    return {"intervals": {} if math.isnan(ends[0]) else {metric: ends}, **task.details(targets, said)}


def interval(task: Task, metric: str, targets: np.ndarray, said: np.ndarray) -> tuple[float, float]:
    """95 %: Wilson's for a share of rows, bootstrap for the rest."""
    if task.is_share(metric):
        right = task.right(targets, said)
        return wilson(int(right.sum()), len(right))
    return bootstrap_interval(task.scorer(metric, targets, said), len(targets))


def labelled(task: Task, examples: Examples, said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets and answers of the rows that have a label."""
    there = np.asarray(examples.labelled[examples.index])
    return task.golds(examples)[there], said[there]


def size(model: PreTrainedModel, folder: str | Path) -> dict[str, Any]:
    """Parameters, also by part, and the bytes of the weights in its folder."""
    parts = anatomy.parameters(model)
    total = sum(parts.values())
    return {"parameters": total, "parts": parts, "bytes": bytes_of(folder, total)}
