"""Regression on the teacher's logits (Ba and Caruana, 2014; Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.recipe.bounds import Share
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training.losses import hard, logit_distance, taught


@dataclass(frozen=True)
class LogitRegression:
    """L = α·CE(y, z) + (1−α)·‖z_teacher − z_student‖², summed over classes; α = 0 is best in the paper

    Where the teacher has no answer, CE(y, z) alone, whole.
    """

    alpha: Share = 0.0

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants(logits=True)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        return {
            "hard": 1.0 * hard(student.logits, batch, beside_teacher=self.alpha),
            "logits": (1 - self.alpha) * taught(logit_distance(student.logits, teacher.logits, batch.never), batch),
        }
