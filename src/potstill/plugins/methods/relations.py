"""MiniLMv2: relations of tokens by queries, keys and values, in one layer (Wang et al., 2021, arXiv:2012.15828)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from potstill.api import Batch, Count, InputError, Method, NotBelow, Signals, Term, Wants, losses

MOST_HEADS = 48  # of the paper's models 768 wide


@dataclass(frozen=True)
class Relations(Method):
    """L = Σ_{queries, keys, values} 1/A·Σ_a KL(R_teacher,a ‖ R_student,a) + λ·CE, R_a = softmax(V_a·V_aᵀ/√d), averaged over real
    tokens, and CE alone where the teacher has no answer

    V_a is one of A equal slices of all heads' vectors side by side, d its width. R_a is as wide as the text is long, so both
    models may have any width, depth and number of heads. Padding takes no part in the softmax.

    teacher_layer: counted from 1. None: the last.
    student_layer: counted from 1. None: the last.
    heads: A, relation heads. None: the most up to 48 that divide the vectors of both.
    labels: λ, the weight of the labels, or of the masked tokens. None: 1, or 0 where the classes are a vocabulary. 0: the head
    is not asked at all.
    """

    teacher_layer: Count | None = None
    student_layer: Count | None = None
    heads: Count | None = None
    labels: NotBelow | None = None

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        sides = []
        for side, layer, last in (
            ("student", self.student_layer, student_layers),
            ("teacher", self.teacher_layer, teacher_layers),
        ):
            if (layer or 1) > last:
                raise InputError(
                    f"method.relations: the {side} has {last} layers; write {side}_layer = {last}, or less"
                )
            one = (layer or last,)
            sides.append(Wants(side == "student" and self.labels != 0, queries=one, keys=one, values=one))
        return sides[0], sides[1]

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        vectors = {
            name: (
                getattr(student, name).squeeze(1),
                getattr(teacher, name).squeeze(1),
            )  # (batch, 1 layer, tokens, width)
            for name in ("queries", "keys", "values")
        }
        heads = self.heads or _common_heads([side.shape[-1] for sides in vectors.values() for side in sides])
        terms = {name: 1.0 * losses.relation_divergence(*sides, heads, batch) for name, sides in vectors.items()}
        if self.labels == 0:
            return terms
        beside = losses.weight_of_labels(self.labels, batch)
        return {**terms, "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=beside)}


def _common_heads(widths: list[int]) -> int:
    """The largest number up to 48 that divides all of them."""
    common = math.gcd(*widths)
    return next(heads for heads in range(min(MOST_HEADS, common), 0, -1) if common % heads == 0)
