"""Regression on the teacher's logits (Ba and Caruana, 2014; Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Batch, Method, Share, Signals, Term, losses


@dataclass(frozen=True)
class LogitRegression(Method):
    """L = α·CE(y, z) + (1−α)·‖z_teacher − z_student‖², and CE(y, z) alone where the teacher has no answer

    The distance is summed over classes.

    alpha: α, the weight of the labels; 0 is best in the paper.
    """

    alpha: Share = 0.0

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        distance = losses.logit_distance(student.logits, teacher.logits, batch.never)
        return {
            "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=self.alpha),
            "logits": (1 - self.alpha) * losses.taught(distance, batch),
        }
