"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.row import Label
from potstill.errors import InputError
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.task import Task

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


@dataclass(frozen=True)
class Regression(Task):
    """`targets` are (n,) values, `outputs` (n, 1)."""

    labels: tuple[str, ...] = ("value",)

    name = "regress"
    outcome = "value"
    problem = "regression"

    def encode(self, label: Label, where: str) -> list[float]:
        if isinstance(label, tuple) or not NUMBER.match(label) or not math.isfinite(float(label)):
            raise InputError(f"{where}: '{label}' is not a number; write a value such as 3.5, or leave the cell empty")
        return [float(label)]

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"value"}"""
        return {"value": float(output[0])}

    def summary(self, output: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        return f"{float(output[0]):.2f}", None

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return f"{float(gold):.2f}"

    @property
    def metrics(self) -> list[str]:
        return ["pearson", "spearman", "mean_of_both", "rmse", "rmse_constant"]

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        return lambda rows: _score(metric, targets[rows], outputs[rows, 0])

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        raise TypeError("a number is not right or wrong")

    def calibration_error(self, targets: np.ndarray, outputs: np.ndarray) -> None:
        return None

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float:
        """Pearson's correlation."""
        return metrics.pearson(theirs[:, 0], ours[:, 0])

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        return np.abs(theirs[:, 0] - ours[:, 0])


def _score(metric: str, targets: np.ndarray, predicted: np.ndarray) -> float:
    if metric == "rmse":
        return metrics.rmse(targets, predicted)
    if metric == "rmse_constant":  # of always predicting the mean of these rows
        return float(np.std(targets, dtype=np.float64))
    if metric == "mean_of_both":
        return (metrics.pearson(targets, predicted) + metrics.spearman(targets, predicted)) / 2
    return metrics.pearson(targets, predicted) if metric == "pearson" else metrics.spearman(targets, predicted)
