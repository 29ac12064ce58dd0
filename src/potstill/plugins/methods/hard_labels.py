"""Plain fine-tuning on the labels, without a teacher: the baseline of every distillation, and how teachers are made."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Batch, Method, Share, Signals, Term, Wants, losses


@dataclass(frozen=True)
class HardLabels(Method):
    """L = CE(y, z)

    smoothing: the share of y that is spread evenly over all classes.
    """

    smoothing: Share = 0.0

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants()

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        return {"hard": 1.0 * losses.hard(student.logits, batch, self.smoothing)}
