"""MobileBERT's transfer: feature maps and attention, layer by layer (Sun et al., 2020, arXiv:2004.02984)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from potstill.api import Batch, InputError, Method, NotBelow, Signals, Term, Wants, WholeMap, layer_maps, losses


@dataclass(frozen=True)
class FeatureTransfer(Method):
    """L = Σ_l (α·MSE(H_student, H_teacher) + β·1/A·Σ_a KL(a_teacher ‖ a_student)) + λ·CE, and CE alone where the teacher has no
    answer

    H is the output of a layer, a the attention of one of its A heads; both are averaged over real tokens. With
    layers = "round" a stage with repeat = N transfers layer n in its round n.

    feature_maps: α, the weight of the feature maps.
    attention: β, the weight of the attention. 0: it is not compared, so that the numbers of heads may differ.
    layers: "round", "all", or a list of student layers counted from 1.
    map: which teacher layer teaches which student layer.
    labels: λ, the weight of the labels, or of the masked tokens. None: 1, or 0 where the classes are a vocabulary. 0: the head
    is not asked at all.
    """

    feature_maps: NotBelow = 1.0
    attention: NotBelow = 1.0
    layers: Literal["round", "all"] | list[int] = "round"
    map: WholeMap = "uniform"
    labels: NotBelow | None = None

    def in_round(self, number: int) -> Self:
        return replace(self, layers=[number]) if self.layers == "round" else self

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = layer_maps.pairs(self.map, student_layers, teacher_layers, whole=True)
        taught = dict(zip(ours, theirs, strict=True))
        chosen = tuple(self.layers) if isinstance(self.layers, list) else ours
        if missing := [layer for layer in chosen if layer not in taught]:
            raise InputError(
                f"method.feature_transfer: the student has no layer {missing[0]} with a teacher; write layers from 1 to "
                f"{ours[-1]}, and repeat = {ours[-1]}: a round transfers a layer"
            )
        pairs = chosen, tuple(taught[layer] for layer in chosen)
        of_student, of_teacher = (Wants(hidden=each, heads=each if self.attention else ()) for each in pairs)
        return replace(of_student, logits=self.labels != 0), of_teacher

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        gaps = losses.squared_distance(student.hidden, teacher.hidden) / teacher.hidden.shape[-1]  # of each layer
        terms = {"feature_maps": self.feature_maps * losses.per_token(gaps.sum(1), batch)}
        if self.attention:
            terms["attention"] = self.attention * losses.head_divergence(student.heads, teacher.heads, batch)
        if self.labels == 0:
            return terms
        beside = losses.weight_of_labels(self.labels, batch)
        return {**terms, "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=beside)}
