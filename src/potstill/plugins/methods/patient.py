"""Patient knowledge distillation (Sun et al., 2019, arXiv:1908.09355)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potstill.recipe.bounds import Above, NotBelow, Share
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training.layer_maps import LayerMap, compared, pairs
from potstill.training.losses import cosine_distance, direction_distance, hard, per_example, soft


@dataclass(frozen=True)
class Patient:
    """L = (1−α)·CE + α·T²·KL + β·Σ_layers ‖unit(h_student) − unit(h_teacher)‖² on [CLS]

    The published β of 10 to 1000 belong to the authors' code, which takes the mean over layers and width: write
    scale = "mean" to use them. The paper's sum is layers × width times larger: β_sum = β_mean / (layers × width).
    map = "average" compares the mean of all layers' [CLS] on both sides. Of causal models the last token stands for [CLS],
    which alone has seen the whole text. Where the teacher has no answer, CE alone, whole.
    """

    temperature: Above = 5.0
    alpha: Share = 0.5
    beta: NotBelow = 0.1
    map: LayerMap = "skip"
    scale: Literal["sum", "mean"] = "sum"
    distance: Literal["mse", "cosine"] = "mse"

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = pairs(self.map, student_layers, teacher_layers)
        return Wants(logits=True, cls=ours), Wants(logits=True, cls=theirs)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        ours, theirs = compared(self.map, student.cls, teacher.cls)
        distance = direction_distance if self.distance == "mse" else cosine_distance
        patience = distance(ours, theirs).sum(1)  # (batch,): summed over layers
        if self.scale == "mean":
            patience = patience / (theirs.shape[1] * theirs.shape[2])
        return {
            "hard": 1.0 * hard(student.logits, batch, beside_teacher=1 - self.alpha),
            "soft": self.alpha * soft(student.logits, teacher.logits, batch, self.temperature),
            "patient": self.beta * per_example(patience, batch),
        }
