"""Attention-guided answer distillation for reading comprehension (Hu et al., 2018, arXiv:1808.07644)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Above, Batch, LayerMap, Method, NotBelow, Share, Signals, Term, Wants, layer_maps, losses


@dataclass(frozen=True)
class AnswerAttention(Method):
    """L = (1−α)·CE + α·T²·KL + γ·max(0, margin + log p(confusing) − log p(gold)) + β·Σ_layers ‖A_student − A_teacher‖², and
    CE alone where the teacher has no answer

    The confusing answer is the teacher's best span that shares no token with the gold one; p is the student's probability
    of start and end together, averaged over windows. A are attention probabilities, the mean over heads, averaged over
    real tokens. The paper's networks were recurrent: the layers of a transformer that are compared, and the weights, are
    our choice.

    temperature: T.
    alpha: α, the weight of the soft targets.
    gamma: γ, the weight of the confusing answer.
    margin: how much more probable the gold answer must be, in log probability.
    beta: β, the weight of the attention.
    map: which teacher layer teaches which student layer.
    """

    outcomes = ("span",)

    temperature: Above = 2.0
    alpha: Share = 0.5
    gamma: NotBelow = 0.1
    margin: NotBelow = 1.0
    beta: NotBelow = 1.0
    map: LayerMap = "skip"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = layer_maps.pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, attention=ours), Wants(logits=True, attention=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        gold = batch.targets.long().view(-1, 2)  # (windows, 2) start and end
        confusing = losses.confusing_spans(teacher.logits, gold)
        wrong, right = (losses.span_log_probability(student.logits, span) for span in (confusing, gold))
        applies = batch.labelled.view(-1, 2)[:, 0] & batch.taught & (confusing >= 0).all(1)
        penalty = (self.margin + wrong - right).relu().where(applies, 0.0)
        ours, theirs = layer_maps.compared(self.map, student.attention, teacher.attention)
        return {
            "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * losses.soft(student.logits, teacher.logits, batch, self.temperature),
            "confusing": self.gamma * Term(penalty.sum(), "examples"),
            "attention": self.beta * losses.per_token(losses.squared_distance(ours, theirs).sum(1), batch),
        }
