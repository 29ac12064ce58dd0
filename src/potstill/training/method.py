"""Objectives. One file is one method; its name is the word that recipes use.

A method is a frozen dataclass: its fields are its hyperparameters, the recipe's schema and the help. It has
`wants(student_layers, teacher_layers)`, what it asks of each side, and `losses(student, teacher, batch)`, whose return
statement is the paper's equation, one weighted, named term per line.
"""

from __future__ import annotations

from typing import Protocol

from potstill.signals import Batch, Signals, Term, Wants


class Method(Protocol):
    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]: ...

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]: ...
