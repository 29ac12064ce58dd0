"""Plain fine-tuning on the labels: no teacher. The baseline of every distillation, and how teachers are made."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.recipe.bounds import Share
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training.losses import hard


@dataclass(frozen=True)
class HardLabels:
    """L = CE(y, z)"""

    smoothing: Share = 0.0  # of y, spread over all classes

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants()

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        return {"hard": 1.0 * hard(student.logits, batch, self.smoothing)}
