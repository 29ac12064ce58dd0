"""The base of student builders. One file in `plugins/students/` is one builder; its name is the word that recipes use.

This module does not import torch, so that recipes are checked without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from potstill.data.task import DataTask
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace
from potstill.recipe.plugins import Plugin

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Texts = Callable[[], Iterator[str]]
"""Returns every text (and pair) of the train rows, from the start at each call."""


@dataclass
class Student:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    new_head: bool = False  # True if its head got random weights when it was loaded


@dataclass(frozen=True)
class BuildContext:
    """What a builder may use beside the current student."""

    start: Student  # the recipe's first weights, or those of the step that the stage rewinds to; never changed
    seed: int
    texts: Texts
    pairs: bool = False  # True if a row of the task is two texts
    teacher: Student | None = None  # of the stage; None: there is none, or its answers are in a file
    round: int = 1  # of the stage, which may be repeated


class Builder(Plugin):
    """A way to make or reshape a network, as a frozen dataclass."""

    plugin_kind = "students"
    task_heads: ClassVar[tuple[str, ...]] = ()
    """The heads that the builder makes, such as "Seq2SeqLM". Empty: the head of the current student, which reads texts."""
    architectures: ClassVar[tuple[str, ...]] = ()
    """The architectures that it can reshape, such as "bert". Empty: all of them."""
    images: ClassVar[bool] = False
    """True if it reshapes networks that read images as well as those that read texts."""
    random_weights: ClassVar[bool] = False
    """True if the network that it makes has random weights: it is then trained longer and at a higher rate."""

    @abstractmethod
    def build(self, current: Student, context: BuildContext) -> Student:
        """Return a new student made of the current one, which stays as it is."""

    def begin(self, task: DataTask, seed: int, texts: Texts) -> Student | None:
        """Return a student that needs no weights to begin from. None: the builder can only reshape one."""
        return None

    @property
    def pace(self) -> Pace | None:
        """The learning rate and the epochs that suit this student. None: those of the builder before."""
        return FROM_RANDOM_WEIGHTS if self.random_weights else None

    def kept(self, layers: int) -> list[int] | None:
        """Return which of a network's layers the student begins as, counted from 1, for the report. None: it has others."""
        return None
