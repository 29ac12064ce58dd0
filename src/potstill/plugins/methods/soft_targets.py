"""Vanilla knowledge distillation by soft targets (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.errors import InputError
from potstill.recipe.bounds import Above, Count, Share
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training.losses import hard, soft


@dataclass(frozen=True)
class SoftTargets:
    """L = (1−α)·CE(y, z) + α·T²·KL(teacher ‖ student); CE(y, z) alone where the teacher has no answer"""

    temperature: Above | None = None  # T; none: 5, and 1 with `top` or where the classes are a vocabulary
    alpha: Share = 0.5
    smoothing: Share = 0.0  # of y, spread over all classes
    top: Count | None = None  # of the teacher's classes, the most probable ones and the mass of the rest; none: all

    def __post_init__(self) -> None:
        if self.top and self.temperature is not None and self.temperature > 1:
            raise InputError(
                f"method.soft_targets: temperature = {self.temperature:g} with top = {self.top}: the classes beyond `top` share "
                "their mass evenly, and a temperature above 1 would make that most of it; write temperature = 1.0, or leave top out"
            )

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants(logits=True, top=self.top or 0)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        temperature = 1.0 if self.temperature is None and self.top else self.temperature
        return {
            "hard": 1.0 * hard(student.logits, batch, self.smoothing, beside_teacher=1 - self.alpha),
            "soft": self.alpha * soft(student.logits, teacher.logits, batch, temperature),
        }
