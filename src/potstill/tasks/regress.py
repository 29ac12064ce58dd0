"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.row import Label
from potstill.errors import InputError
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.task import Task

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
    "mean_of_both": lambda gold, predicted: (metrics.pearson(gold, predicted) + metrics.spearman(gold, predicted)) / 2,
    "rmse": metrics.rmse,
    # of always predicting the mean of these rows
    "rmse_constant": lambda gold, _: float(np.std(gold, dtype=np.float64)),
}


@dataclass(frozen=True)
class Regression(Task):
    """`targets` are (n,) values, `outputs` (n, 1)."""

    labels: tuple[str, ...] = ("value",)

    name = "regress"
    outcome = "value"
    problem = "regression"
    metrics = tuple(SCORES)

    def encode(self, label: Label, where: str) -> list[float]:
        if isinstance(label, tuple) or not NUMBER.match(label) or not math.isfinite(float(label)):
            raise InputError(f"{where}: '{label}' is not a number; write a value such as 3.5, or leave the cell empty")
        return [float(label)]

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"value"}"""
        return {"value": float(output[0])}

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return f"{float(gold):.2f}"

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        score = SCORES[metric]
        return lambda rows: score(targets[rows], outputs[rows, 0])

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        raise TypeError("a number is not right or wrong")

    def compared(self, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return targets, self.decode(outputs)

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float:
        """Pearson's correlation."""
        return metrics.pearson(theirs[:, 0], ours[:, 0])

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return np.abs(theirs[:, 0] - ours[:, 0])
