"""Hints: the student matches the teacher's raw hidden states (FitNets: Romero et al., 2015, arXiv:1412.6550)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Above, Batch, LayerMap, Method, NotBelow, Share, Signals, Term, Wants, layer_maps, losses


@dataclass(frozen=True)
class Hints(Method):
    """L = (1−α)·CE + α·T²·KL + β·MSE(H_student, H_teacher), and CE alone where the teacher has no answer

    The mean squared error is averaged over real tokens, layers and width.

    temperature: T. None: 5, or 1 where the classes are a vocabulary.
    alpha: α, the weight of the soft targets.
    beta: β, the weight of the hidden states.
    map: which teacher layer teaches which student layer.
    """

    temperature: Above | None = None
    alpha: Share = 0.5
    beta: NotBelow = 1.0
    map: LayerMap = "skip"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = layer_maps.pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, hidden=ours), Wants(logits=True, hidden=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        ours, theirs = layer_maps.compared(self.map, student.hidden, teacher.hidden)
        gap = losses.squared_distance(ours, theirs).mean(1) / theirs.shape[-1]  # (batch, tokens)
        return {
            "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * losses.soft(student.logits, teacher.logits, batch, self.temperature),
            "hint": self.beta * losses.per_token(gap, batch),
        }
