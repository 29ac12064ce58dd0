"""What the data room needs of a task: how labels become targets, texts become tokens and rows become predictions.

`potstill.tasks` has the tasks themselves. They depend on this room, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from potstill.data.row import Form, Label

if TYPE_CHECKING:  # torch is not needed to store rows; examples and tokens use these protocols themselves
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from potstill.data.examples import Examples
    from potstill.data.tokens import Encoded, Tokens
    from potstill.signals import Outcome


class DataTask(Protocol):
    """A task as rows, tokens and batches see it."""

    @property
    def form(self) -> Form:
        """The form of the rows that the task reads."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """The class of each label as it is written in the rows."""

    @property
    def classes(self) -> int: ...

    @property
    def generates(self) -> bool:
        """True if the targets are texts, so that the classes of a prediction are the vocabulary."""

    @property
    def target_width(self) -> int:
        """How many numbers `encode` returns; 0 if that differs from row to row."""

    def encode(self, label: Label, where: str) -> list[float]:
        """Return the target of a row. `where` is file:line for the error message."""

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """Return the rows as sequences of at most `length` tokens."""

    def aligned(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        """Return two tokenisations of the same rows, changed where needed so that both make the same predictions."""

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the number of predictions of each row."""

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `at` and `layout` of a `View` of these rows."""

    def inputs(self, made: dict[str, Tensor], real: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """Return the arguments of the model's `forward`."""

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """Return (predictions,) or (predictions, classes); any value where a row has no label."""

    def never(self, tokens: Tokens) -> tuple[int, ...]:
        """Return the classes that can never be chosen."""
