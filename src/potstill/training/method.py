"""The base of methods. One file in `plugins/methods/` is one method; its name is the word that recipes use."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self, get_args

from potstill.recipe.plugins import Plugin
from potstill.signals import Batch, Outcome, Signals, Term, Wants


class Method(Plugin):
    """A training objective, as a frozen dataclass whose fields are its hyperparameters."""

    plugin_kind = "methods"
    outcomes: ClassVar[tuple[Outcome, ...]] = get_args(Outcome)
    """The outcomes of the tasks that the method can train."""

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        """Return the signals that the method needs of the student and of the teacher: by default their logits."""
        return Wants(logits=True), Wants(logits=True)

    def in_round(self, number: int) -> Self:
        """Return the method for a round of its stage, counted from 1. By default all rounds have the same."""
        return self

    @abstractmethod
    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        """Return the paper's equation: one weighted, named term per line."""
