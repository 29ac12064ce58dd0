"""Text classification: one class for a text or a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from potstill.data.row import Label
from potstill.errors import InputError
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score, by_class
from potstill.tasks.task import Problem, Task

if TYPE_CHECKING:
    from potstill.recipe.schema import TaskName

F1_OF = "f1 of "  # before the name of a class, in the name of its metric


@dataclass(frozen=True)
class TextClassification(Task):
    """`targets` are (n,) classes, `outputs` (n, classes) logits."""

    positive: int = 1  # of two classes, the one whose F1 is reported

    name: ClassVar[TaskName] = "classify"
    problem: ClassVar[Problem | None] = "single_label_classification"
    row_metrics = ("accuracy",)

    def encode(self, label: Label, where: str) -> list[float]:
        if isinstance(label, tuple):
            raise InputError(f"{where}: several labels {list(label)} in one row; write one, or task = 'multilabel'")
        return [float(self.number(label, where))]

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(-1)

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"label", "probability", "probabilities"}"""
        probabilities = named_probabilities(self, output)
        label = self.labels[int(output.argmax())]
        return {"label": label, "probability": probabilities[label], "probabilities": probabilities}

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return self.labels[int(gold)]

    @property
    def metrics(self) -> tuple[str, ...]:
        f1 = [f"{F1_OF}{self.labels[self.positive]}"] if self.classes == 2 else ["f1_macro", "f1_micro"]
        return ("accuracy", *f1, "matthews")

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        gold, predicted = self.compared(targets, outputs)
        if metric == "matthews":
            return lambda rows: metrics.matthews(gold[rows], predicted[rows])
        if metric.startswith(F1_OF):  # of one class against all others
            number = self.labels.index(metric.removeprefix(F1_OF))
            ours, theirs = (gold == number).astype(int), (predicted == number).astype(int)
            return lambda rows: metrics.f1(ours[rows], theirs[rows], "binary")
        return super().scorer(metric, targets, outputs)

    def details(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """The quality of each class, the confusion matrix (gold, predicted), the mean probabilities (gold, class)."""
        return by_class(self.labels, *self.compared(targets, outputs), self.probabilities(outputs))


def named_probabilities(task: Task, output: np.ndarray) -> dict[str, float]:
    probabilities = task.probabilities(output[None])[0]
    return {label: round(float(p), 6) for label, p in zip(task.labels, probabilities, strict=True)}
