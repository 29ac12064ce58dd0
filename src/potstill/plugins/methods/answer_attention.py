"""Attention-guided answer distillation for reading comprehension (Hu et al., 2018, arXiv:1808.07644)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from potstill.recipe.bounds import Above, NotBelow, Share
from potstill.signals import Batch, Outcome, Signals, Term, Wants
from potstill.training.layer_maps import LayerMap, compared, pairs
from potstill.training.losses import confusing_spans, hard, per_token, soft, span_log_probability, squared_distance


@dataclass(frozen=True)
class AnswerAttention:
    """L = (1−α)·CE + α·T²·KL + γ·max(0, margin + log p(confusing) − log p(gold)) + β·Σ_layers ‖A_student − A_teacher‖²

    The confusing answer is the teacher's best span that shares no token with the gold one; p is the student's, of start
    and end together; averaged over windows. A are attention probabilities, mean over heads; averaged over real tokens.
    Where the teacher has no answer, CE alone, whole.
    The paper's networks were recurrent: which layers of a transformer are compared, and the weights, are choices of ours.
    """

    outcomes: ClassVar[tuple[Outcome, ...]] = ("span",)

    temperature: Above = 2.0
    alpha: Share = 0.5
    gamma: NotBelow = 0.1
    margin: NotBelow = 1.0
    beta: NotBelow = 1.0
    map: LayerMap = "skip"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, attention=ours), Wants(logits=True, attention=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        gold = batch.targets.long().view(-1, 2)  # (windows, 2) start and end
        confusing = confusing_spans(teacher.logits, gold)
        found, right = (span_log_probability(student.logits, span) for span in (confusing, gold))
        known = batch.labelled.view(-1, 2)[:, 0] & batch.taught & (confusing >= 0).all(1)
        penalty = torch.where(known, F.relu(self.margin + found - right), 0.0)
        ours, theirs = compared(self.map, student.attention, teacher.attention)
        return {
            "hard": 1.0 * hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * soft(student.logits, teacher.logits, batch, self.temperature),
            "confusing": self.gamma * Term(penalty.sum(), "examples"),
            "attention": self.beta * per_token(squared_distance(ours, theirs).sum(1), batch),
        }
