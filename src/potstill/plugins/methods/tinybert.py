"""TinyBERT: attention scores, hidden states, embeddings and predictions (Jiao et al., 2020, arXiv:1909.10351)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import Above, Batch, InputError, Method, NotBelow, Signals, Term, Wants, WholeMap, layer_maps, losses


@dataclass(frozen=True)
class TinyBert(Method):
    """L = λ·Σ_m (MSE(A_student, A_teacher) + MSE(H_student·W, H_teacher)) + λ·MSE(E_student·W_e, E_teacher) + μ·T²·KL, and CE
    alone where the teacher has no answer

    A are attention scores before the softmax, the mean over heads; H and E hidden states and embeddings. Padding counts in
    none of them, neither as a query nor as a key. If one side has more heads, its scores are averaged in equal groups.

    layers: λ, the weight of scores, states and embeddings. 0: they are not compared, as in the prediction stage.
    prediction: μ, the weight of the teacher's predictions. 0: none, as in the general and the intermediate stage.
    temperature: T.
    map: which teacher layer teaches which student layer.
    centred: compare scores less their mean over the keys of a query, which has no effect on attention.
    """

    layers: NotBelow = 1.0
    prediction: NotBelow = 1.0
    temperature: Above = 1.0
    map: WholeMap = "uniform"
    centred: bool = False

    def __post_init__(self) -> None:
        if not self.layers and not self.prediction:
            raise InputError("method.tinybert: layers and prediction are both 0; write layers = 1.0")

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        logits = self.prediction > 0
        if not self.layers:
            return Wants(logits=True), Wants(logits=True)
        ours, theirs = layer_maps.pairs(self.map, student_layers, teacher_layers, whole=True)
        return Wants(logits, hidden=(0, *ours), scores=ours), Wants(logits, hidden=(0, *theirs), scores=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        terms: dict[str, Term] = {}
        if self.layers:
            scores = losses.as_many_heads(student.scores, teacher.scores)
            if self.centred:
                scores = losses.centred_scores(scores[0], batch), losses.centred_scores(scores[1], batch)
            gaps = losses.squared_distance(student.hidden, teacher.hidden) / teacher.hidden.shape[-1]  # of each layer
            terms |= {
                "attention": self.layers * losses.score_distance(*scores, batch),
                "hidden": self.layers * losses.per_token(gaps[:, 1:].sum(1), batch),
                "embedding": self.layers * losses.per_token(gaps[:, 0], batch),
            }
        if self.prediction:
            terms |= {
                "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=0.0),
                "prediction": self.prediction * losses.soft(student.logits, teacher.logits, batch, self.temperature),
            }
        return terms
