"""The base of exports. One file in `plugins/exports/` is one export; its name is the word that users type."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from potstill.recipe.plugins import Plugin

if TYPE_CHECKING:
    from potstill.models.student import Student

Rows = Sequence[tuple[str, str | None]]
"""The text and the pair of each row, in the form that the student's task reads."""


class Seconds(NamedTuple):
    """How long a text takes: alone (the median over texts), and as one of a batch of 32. Generating is by greedy search."""

    alone: float
    in_batch: float


@dataclass(frozen=True)
class Checked:
    """An exported file, and how its answers compare with those of PyTorch."""

    file: Path
    difference: float  # the largest
    agreement: float | None  # share of equal predictions; None: numbers are predicted, which are never quite equal
    of: str = "a logit"  # what `difference` is measured on
    rows: int | None = None  # how many rows were compared; None: all; 0: random ones
    answers: int | None = None  # how many of these `agreement` is measured on; None: all
    seconds: Mapping[str, Seconds] = field(default_factory=dict)  # by form, the exported one first; {}: not measured
    note: str = ""  # a choice that was made, in words


class Export(Plugin):
    """A finished form of a student, as a frozen dataclass."""

    plugin_kind = "exports"

    @abstractmethod
    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        """Write `out`, which may not exist, so that `predict` and `measure` read it; compare it with PyTorch on `rows` (or random ids)."""
