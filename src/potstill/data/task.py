"""What the data room needs of a task: how labels become targets, texts become tokens and rows become predictions.

`potstill.tasks` has the tasks themselves. They depend on this room, never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from potstill.data.row import Label
from potstill.recipe.task_words import Form

if TYPE_CHECKING:  # examples and tokens use these protocols themselves, and signals need torch
    from potstill.data.examples import Examples
    from potstill.data.tokens import Encoded, Tokens
    from potstill.signals import Outcome


Texts = Sequence[tuple[str, str | None]]
"""Text and second text of some rows."""


class Tokenizer(Protocol):
    """What tasks need of a tokenizer: one of transformers, or `JsonTokenizer`, which needs neither torch nor transformers."""

    truncation_side: str
    model_input_names: list[str]

    @property
    def mask_token(self) -> str | None: ...

    @property
    def pad_token_id(self) -> int | None: ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    @property
    def name_or_path(self) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def decode(self, ids: list[int], /) -> Any: ...

    def __call__(self, *texts: Any, **options: Any) -> Any:
        """Return token ids and more by name for texts, or texts and pairs, with the `encodings` of the tokenizers library."""


class DataTask(Protocol):
    """A task as data, data makers and student builders see it."""

    @property
    def name(self) -> str:
        """The word that the user types."""

    @property
    def head(self) -> str:
        """The head of the model that answers, as transformers calls it, such as "SequenceClassification"."""

    @property
    def names_outputs(self) -> bool:
        """True if the labels are the names of the head's outputs."""

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
    def vocabulary(self) -> bool:
        """True if the classes are the tokens of the vocabulary."""

    @property
    def generates(self) -> bool:
        """True if the targets are texts, one after the other."""

    @property
    def own_targets(self) -> bool:
        """True if rows need no label, since what is predicted is in the text."""

    @property
    def draws(self) -> bool:
        """True if what is predicted is drawn again in every epoch."""

    @property
    def masks(self) -> int | None:
        """After so many epochs what is drawn comes back; None: never."""

    @property
    def follows(self) -> bool:
        """True if rows are pairs of texts that follow each other in a document."""

    @property
    def two_stacks(self) -> bool:
        """True if the model reads a text with an encoder and writes another with a decoder."""

    @property
    def images(self) -> bool:
        """True if the rows are images."""

    @property
    def target_width(self) -> int:
        """How many numbers `encode` returns; 0 if that differs from row to row."""

    def with_spellings_of(self, labels: Iterable[str]) -> Self:
        """Return the task with the class of each of these labels, in the spelling of the rows."""

    def number(self, label: str, where: str) -> int:
        """Return the class of a label. `where` is file:line for the error message."""

    def encode(self, label: Label, where: str) -> list[float]:
        """Return the target of a row. `where` is file:line for the error message."""

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """Return the rows as sequences of at most `length` tokens."""

    def align(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        """Return two tokenisations of the same rows, changed where needed so that both make the same predictions."""

    def redrawn(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """Return rows as they are read now, and their numbers among these; the other methods expect them so."""

    def second_places(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray | None:
        """Return (places, 2) where a second head is read, once for each row; None: the task has one head."""

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the number of predictions of each row."""

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `at` and `layout` of a `View` of these rows."""

    def inputs(
        self, arrays: dict[str, np.ndarray], real: np.ndarray, tokens: Tokens, rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arguments of the model's `forward`."""

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """Return (predictions,) or (predictions, classes); any value where a row has no label."""

    def impossible_classes(self, tokens: Tokens) -> tuple[int, ...]:
        """Return the classes that can never be chosen."""
