"""Vanilla knowledge distillation by soft targets (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potstill.api import Above, Batch, Count, InputError, Method, Share, Signals, Term, Wants, losses


@dataclass(frozen=True)
class SoftTargets(Method):
    """L = (1−α)·CE(y, z) + α·T²·KL(teacher ‖ student), and CE(y, z) alone where the teacher has no answer

    temperature: T. None: 5, or 1 with `top`, `draws` and where the classes are a vocabulary. auto: the one at which the
    teacher's probabilities fit the labels of dev, at least 1, or 2 with more than three classes.
    alpha: α, the weight of the teacher.
    smoothing: the share of y that is spread evenly over all classes.
    top: how many of the teacher's most probable classes are kept, with the mass of the rest. None: all classes.
    draws: how many classes are drawn from the teacher's distribution instead. None: all classes.
    """

    temperature: Above | Literal["auto"] | None = None
    alpha: Share = 0.5
    smoothing: Share = 0.0
    top: Count | None = None
    draws: Count | None = None

    def __post_init__(self) -> None:
        if self.top and self.draws:
            raise InputError("method.soft_targets: top and draws are two ways to keep a few classes; omit one of them")
        if (self.draws or self.top) and self.temperature == "auto":
            raise InputError(
                "method.soft_targets: a few classes are kept as they are at T = 1, so the temperature cannot be fitted; "
                "write temperature = 1.0, or omit top and draws"
            )
        if self.draws and self.temperature not in (None, 1.0):
            raise InputError(
                f"method.soft_targets: classes are drawn from the teacher's distribution at T = 1, not {self.temperature}; "
                "write temperature = 1.0, or omit draws"
            )
        if self.top and isinstance(self.temperature, float) and self.temperature > 1:
            raise InputError(
                f"method.soft_targets: temperature = {self.temperature:g} would give most of the mass to classes beyond "
                f"top = {self.top}; write temperature = 1.0, or omit top"
            )

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants(logits=True, top=self.top or 0, draws=self.draws or 0)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        answer = teacher.top or teacher.drawn or teacher.logits
        temperature = 1.0 if self.temperature is None and (self.top or self.draws) else self.temperature
        if (
            temperature == "auto"
        ):  # a plan times steps before the teacher is asked: they take as long at any temperature
            temperature = 1.0
        return {
            "hard": 1.0 * losses.hard(student.logits, batch, self.smoothing, beside_teacher=1 - self.alpha),
            "soft": self.alpha * losses.soft(student.logits, answer, batch, temperature),
        }
