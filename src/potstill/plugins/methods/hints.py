"""Hints: the student matches the teacher's raw hidden states (FitNets: Romero et al., 2015, arXiv:1412.6550)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.recipe.bounds import Above, NotBelow, Share
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training.layer_maps import LayerMap, compared, pairs
from potstill.training.losses import hard, per_token, soft, squared_distance


@dataclass(frozen=True)
class Hints:
    """L = (1−α)·CE + α·T²·KL + β·MSE(H_student, H_teacher), averaged over real tokens, layers and width

    Where the teacher has no answer, CE alone, whole.
    """

    temperature: Above | None = None  # T; none: 5, and 1 where the classes are a vocabulary
    alpha: Share = 0.5
    beta: NotBelow = 1.0
    map: LayerMap = "skip"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, hidden=ours), Wants(logits=True, hidden=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        ours, theirs = compared(self.map, student.hidden, teacher.hidden)
        gap = squared_distance(ours, theirs).mean(1) / theirs.shape[-1]  # (batch, tokens)
        return {
            "hard": 1.0 * hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * soft(student.logits, teacher.logits, batch, self.temperature),
            "hint": self.beta * per_token(gap, batch),
        }
