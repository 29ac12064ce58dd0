"""What a teacher's soft answers contain, read from finished runs: entropy, similar classes, bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import GOLD
from potstill.measuring.run_folder import seed_folders
from potstill.measuring.significance import contrast
from potstill.system.paths import RunFolder
from potstill.tasks.metrics.labels import softmax


def error_counts(predictions: Predictions) -> list[int]:
    """Return the number of wrong predictions of each seed."""
    task, targets = predictions.task, predictions.targets
    return [int((~task.is_correct(targets, logits)).sum()) for logits in predictions.logits]


def gap_closed(alone: Predictions, taught: Predictions, teacher: Predictions) -> tuple[float, float, float]:
    """Return which share of the errors between student alone and teacher distillation removed, with its 95 % interval.

    The interval covers other rows and other seeds, by the first derivatives of the share with respect to the three scores
    (delta method).
    """
    alone, taught, teacher = (replace(predictions, metric="accuracy") for predictions in (alone, taught, teacher))
    gap = teacher.mean() - alone.mean()
    if gap == 0:
        return math.nan, math.nan, math.nan
    share = (taught.mean() - alone.mean()) / gap
    sides = ((1 / gap, taught), ((share - 1) / gap, alone), (-share / gap, teacher))
    change = contrast([(weight, predictions.scores()) for weight, predictions in sides], len(alone.targets))
    return share, share + change.low - change.mean, share + change.high - change.mean


def entropies(logits: np.ndarray, temperatures: Sequence[float]) -> list[float]:
    """Return the mean entropy in bits of (rows, classes) answers at each temperature."""
    probabilities = (softmax(logits / temperature) for temperature in temperatures)
    return [float(-(each * np.log2(np.maximum(each, 1e-30))).sum(-1).mean()) for each in probabilities]


def mean_answers(logits: np.ndarray, classes: np.ndarray, temperature: float) -> np.ndarray:
    """Return (classes, classes): the mean answer at a temperature to the rows of each class."""
    probabilities = softmax(logits / temperature)
    return np.stack([probabilities[classes == number].mean(0) for number in range(logits.shape[1])])


def stored_logits(run: Path, model: str, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return a model's logits of each seed on the labelled rows of a split of the first data set, and their classes."""
    files = [load(RunFolder(folder).answers.read_bytes()) for _, folder in seed_folders(run)]
    data = next(iter(files[0])).split("/")[1]
    gold = files[0][f"{GOLD}/{data}/{split}"]
    labelled = ~np.isnan(gold)
    return [file[f"{model}/{data}/{split}"][labelled] for file in files], gold[labelled].astype(int)


def bias_for(logits: np.ndarray, number: int, share: float) -> float:
    """Return what to add to a class's logit so that this share of all predictions is that class. Labels are not used."""
    others = np.delete(logits, number, axis=1).max(1)
    return float(np.quantile(others - logits[:, number], share))


def with_bias(logits: np.ndarray, number: int, bias: float) -> np.ndarray:
    raised = logits.copy()
    raised[:, number] += bias
    return raised
