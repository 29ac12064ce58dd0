"""The bases of data makers. One file in `plugins/data/` is one data maker; its name is the word that recipes use.

A stage lists the makers it wants as `data = [{ make = "sample", rows = 640 }]`; each gets the examples of the one before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from potstill.data.examples import Examples
from potstill.data.task import DataTask
from potstill.recipe.plugins import Plugin
from potstill.signals import Batch
from potstill.system.display import Display

Draw = Callable[[int], np.ndarray]
"""n -> (batch, n) numbers from 0 to below 1, the same for the same example in the same epoch."""
Change = Callable[[Batch, Draw], Batch]
"""Returns the batch as it is in this epoch."""
Decode = Callable[[list[str], int, int], Any]
"""Texts, the width of the beam and the number of hypotheses to return -> hypotheses of each text."""


class Model(Protocol):
    """A model with its tokenizer; makers get a `potstill.models.student.Student`."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class MakeContext:
    """What a data maker may use beside the examples."""

    seed: int
    task: DataTask | None = None
    show: Display | None = None  # None: no progress is shown
    teacher: Model | None = None  # None: there is none, or its answers are in a file
    longest: int = 256  # tokens of a text
    student: Model | None = None  # as the stage finds it; it must not be changed
    round: int = 1  # of the stage, which may be repeated

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; the body calls the function with the number of rows that it has just finished."""
        with (self.show or Display(quiet=True)).bar(label, total) as bar:
            yield bar.advance


class DataMaker(Plugin):
    """A way to make examples, as a frozen dataclass."""

    plugin_kind = "data"

    @abstractmethod
    def make(self, examples: Examples, context: MakeContext) -> Examples:
        """Return the examples that the stage trains on. Called once, before the stage."""


class EpochDataMaker(DataMaker):
    """A data maker that changes the examples in every epoch; the teacher is asked live about what the student sees."""

    @abstractmethod
    def change(self, batch: Batch, draw: Draw) -> Batch:
        """Return the changed batch. Take all random numbers from `draw`, then a resumed run and every rank draw the same."""


class Missing(NamedTuple):
    """Texts that the teacher has not written yet."""

    folder: Path  # where its texts are stored
    keys: np.ndarray  # (examples,) the key of each source
    positions: np.ndarray  # of the examples whose source is missing, each source once


class TeacherDataMaker(DataMaker):
    """A data maker that stores what the teacher writes. All ranks call `make` and share the work.

    `potstill plan` uses the other methods: it decodes a few texts, and trains on `stand_in` instead of on the rest.
    """

    beam: int
    block: ClassVar[int]
    """How many texts are decoded and stored together."""

    @property
    @abstractmethod
    def black_box(self) -> bool:
        """True if the texts do not come from the recipe's teacher, so that their cost in operations is unknown."""

    @abstractmethod
    def missing(self, examples: Examples, context: MakeContext) -> Missing:
        """Return which sources are not stored yet."""

    @abstractmethod
    def decoder(self, context: MakeContext) -> AbstractContextManager[Decode]:
        """Return the function that writes texts, as a context."""

    @abstractmethod
    def stand_in(self, examples: Examples, context: MakeContext) -> Examples:
        """Return as many rows as `make` will, with texts of about the same length."""
