"""DistilBERT: soft targets, masked tokens, direction of the last states (Sanh et al., 2019, arXiv:1910.01108)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Above, Batch, Method, NotBelow, Signals, Term, Wants, losses


@dataclass(frozen=True)
class DistilBert(Method):
    """L = α_ce·T²·KL + α_mlm·CE + α_cos·(1 − cos(h_student, h_teacher)), and CE alone where the teacher has no answer

    KL and CE are averaged over predictions: masked tokens with task `mask`, texts in classification, where CE is that of the
    labels. The cosine is that of the last layer, averaged over real tokens.

    temperature: T.
    alpha_ce: α_ce, the weight of the soft targets.
    alpha_mlm: α_mlm, the weight of the masked tokens, or of the labels.
    alpha_cos: α_cos, the weight of the last states.
    """

    temperature: Above = 2.0
    alpha_ce: NotBelow = 5.0
    alpha_mlm: NotBelow = 2.0
    alpha_cos: NotBelow = 1.0

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        if not self.alpha_cos:
            return Wants(logits=True), Wants(logits=True)
        return Wants(logits=True, hidden=(student_layers,)), Wants(logits=True, hidden=(teacher_layers,))

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        soft_and_hard = {
            "ce": self.alpha_ce * losses.soft(student.logits, teacher.logits, batch, self.temperature),
            "mlm": 1.0 * losses.hard(student.logits, batch, beside_teacher=self.alpha_mlm),
        }
        if not self.alpha_cos:
            return soft_and_hard
        apart = losses.cosine_distance(student.hidden, teacher.hidden).squeeze(1)  # (batch, 1 layer, tokens)
        return {**soft_and_hard, "cos": self.alpha_cos * losses.per_token(apart, batch)}
