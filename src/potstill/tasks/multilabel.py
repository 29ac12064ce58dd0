"""Multi-label classification: any number of classes for a text or a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.row import Label
from potstill.tasks.classify import named_probabilities
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import of_class, set_counts
from potstill.tasks.task import Task


@dataclass(frozen=True)
class MultiLabelClassification(Task):
    """`targets` are (n, classes) of 0 and 1, `outputs` (n, classes) logits; a class is predicted where its logit is above 0."""

    name = "multilabel"
    outcome = "classes"
    problem = "multi_label_classification"
    row_metrics = ("exact",)
    metrics = ("f1_micro", "f1_macro", "exact")

    @property
    def target_width(self) -> int:
        return self.classes

    def encode(self, label: Label, where: str) -> list[float]:
        target = [0.0] * self.classes
        for name in label if isinstance(label, tuple) else (label,):
            target[self.number(name, where)] = 1.0
        return target

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0).astype(np.int64)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / (1.0 + np.exp(-outputs / self.temperature)))

    def confidence(self, outputs: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(self.probabilities(outputs) - 0.5).max(-1))

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"labels", "probabilities"}"""
        predicted = [label for label, logit in zip(self.labels, output, strict=True) if logit > 0]
        return {"labels": predicted, "probabilities": named_probabilities(self, output)}

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return ", ".join(label for label, holds in zip(self.labels, gold, strict=True) if holds) or "none"

    def calibration_error(self, targets: np.ndarray, outputs: np.ndarray) -> float:
        """Over every yes and no."""
        probabilities = self.probabilities(outputs)
        stated = np.maximum(probabilities, 1 - probabilities).ravel()
        return metrics.calibration_error(stated, (self.decode(outputs) == targets.astype(int)).ravel())

    def details(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """The quality of each class."""
        counts = set_counts(*self.compared(targets, outputs))
        return {"per_class": {label: of_class(*each) for label, *each in zip(self.labels, *counts, strict=True)}}
