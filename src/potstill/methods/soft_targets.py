"""Vanilla knowledge distillation by soft targets (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.bounds import Above, Count, Share
from potstill.losses import hard, soft
from potstill.signals import Batch, Signals, Term, Wants


@dataclass(frozen=True)
class SoftTargets:
    """L = (1−α)·CE(y, z) + α·T²·KL(teacher ‖ student)"""

    temperature: Above = 5.0
    alpha: Share = 0.5
    smoothing: Share = 0.0  # of y, spread over all classes
    top: Count | None = None  # of the teacher's classes, the most probable ones and the mass of the rest; none: all

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants(logits=True, top=self.top or 0)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        return {
            "hard": 1.0 * hard(student.logits, batch, self.smoothing, 1 - self.alpha),
            "soft": self.alpha * soft(student.logits, teacher.logits, batch, self.temperature),
        }
