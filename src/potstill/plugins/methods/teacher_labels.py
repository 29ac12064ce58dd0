"""The teacher's most probable class as the label, for rows with and without one (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Batch, Method, Signals, Term, losses


@dataclass(frozen=True)
class TeacherLabels(Method):
    """L = CE(argmax z_teacher, z_student), and CE(y, z_student) where the teacher has no answer"""

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        chosen = losses.teacher_label_loss(student.logits, teacher.logits, batch.outcome)
        return {
            "hard": 1.0 * losses.taught(chosen, batch),
            "labels": 1.0 * losses.hard(student.logits, batch, beside_teacher=0.0),
        }
