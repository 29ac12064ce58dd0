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


def errors(said: Predictions) -> list[int]:
    """Wrong answers of each seed."""
    return [int((~said.task.right(said.targets, logits)).sum()) for logits in said.logits]


def gap_closed(alone: Predictions, taught: Predictions, teacher: Predictions) -> tuple[float, float, float]:
    """Share of the errors between student alone and teacher that teaching took away, with its 95 % interval over other rows
    and other seeds: that of the share's first derivatives by the three scores (delta method)."""
    alone, taught, teacher = (replace(one, metric="accuracy") for one in (alone, taught, teacher))
    without, reached, theirs = (one.mean() for one in (alone, taught, teacher))
    gap = theirs - without
    if gap == 0:
        return math.nan, math.nan, math.nan
    share = (reached - without) / gap
    sides = ((1 / gap, taught), ((share - 1) / gap, alone), (-share / gap, teacher))
    found = contrast([(weight, said.scores()) for weight, said in sides], len(alone.targets))
    return share, share + found.low - found.mean, share + found.high - found.mean


def entropies(logits: np.ndarray, temperatures: Sequence[float]) -> list[float]:
    """Mean entropy in bits of (rows, classes) answers at each temperature."""
    found = []
    for temperature in temperatures:
        shares = softmax(logits / temperature)
        found.append(float(-(shares * np.log2(np.maximum(shares, 1e-30))).sum(-1).mean()))
    return found


def mean_answers(logits: np.ndarray, classes: np.ndarray, temperature: float) -> np.ndarray:
    """(classes, classes): the mean answer at a temperature to the rows of each class."""
    shares = softmax(logits / temperature)
    return np.stack([shares[classes == one].mean(0) for one in range(logits.shape[1])])


def kept_answers(run: Path, model: str, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """A model's logits of each seed on the labelled rows of a split of the first data set, and their classes."""
    files = [load(RunFolder(folder).answers.read_bytes()) for _, folder in seed_folders(run)]
    data = next(iter(files[0])).split("/")[1]
    gold = files[0][f"{GOLD}/{data}/{split}"]
    there = ~np.isnan(gold)
    return [file[f"{model}/{data}/{split}"][there] for file in files], gold[there].astype(int)


def bias_for(logits: np.ndarray, number: int, share: float) -> float:
    """What to add to one class's logit so that this share of all answers is that class. No label is looked at."""
    others = np.delete(logits, number, axis=1).max(1)
    return float(np.quantile(others - logits[:, number], share))


def with_bias(logits: np.ndarray, number: int, bias: float) -> np.ndarray:
    raised = logits.copy()
    raised[:, number] += bias
    return raised
