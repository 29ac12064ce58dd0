"""Patient knowledge distillation (Sun et al., 2019, arXiv:1908.09355)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potstill.api import Above, Batch, LayerMap, Method, NotBelow, Share, Signals, Term, Wants, layer_maps, losses


@dataclass(frozen=True)
class Patient(Method):
    """L = (1−α)·CE + α·T²·KL + β·Σ_layers ‖unit(h_student) − unit(h_teacher)‖² on [CLS], and CE alone where the teacher
    has no answer

    The published β of 10 to 1000 belong to the authors' code, which takes the mean over layers and width: write
    scale = "mean" to use them. The paper's sum is layers × width times larger: β_sum = β_mean / (layers × width).
    In causal models the last token, which alone has read the whole text, takes the place of [CLS].

    temperature: T.
    alpha: α, the weight of the soft targets.
    beta: β, the weight of the [CLS] states.
    map: which teacher layer teaches which student layer; "average" compares the mean of all layers' [CLS] on both sides.
    scale: the sum over layers and width (the paper), or the mean (the authors' code).
    distance: of the unit vectors; "cosine" is 1 − cos, half of "mse".
    """

    temperature: Above = 5.0
    alpha: Share = 0.5
    beta: NotBelow = 0.1
    map: LayerMap = "skip"
    scale: Literal["sum", "mean"] = "sum"
    distance: Literal["mse", "cosine"] = "mse"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = layer_maps.pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, cls=ours), Wants(logits=True, cls=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        ours, theirs = layer_maps.compared(self.map, student.cls, teacher.cls)
        distance = losses.direction_distance if self.distance == "mse" else losses.cosine_distance
        patience = distance(ours, theirs).sum(1)  # (batch,): summed over layers
        if self.scale == "mean":
            patience = patience / (theirs.shape[1] * theirs.shape[2])
        return {
            "hard": 1.0 * losses.hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * losses.soft(student.logits, teacher.logits, batch, self.temperature),
            "patient": self.beta * losses.per_example(patience, batch),
        }
