"""What every task has: how rows become sequences, where the head is read, how outputs are scored and described.

A file of this room is one task. The training loop, the methods and the teacher's memory see predictions only (rows of
logits, see `potstill.signals`) and never the name of a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np

from potstill.data.examples import Examples
from potstill.data.formats.reading import clean_text
from potstill.data.label_names import match_spellings
from potstill.data.row import Label, Row
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens, with_mask_token
from potstill.errors import InputError
from potstill.recipe.task_words import TASK_WORDS, Form, TaskWords
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.truncation import encode_texts, shorten_pairs

if TYPE_CHECKING:
    from potstill.recipe.schema import TaskName
    from potstill.signals import Outcome

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
Asked = str | tuple[str, str] | Sequence[str] | Mapping[str, Any]
"""An example as `predict` takes it; each task says which of these it understands."""


class Rows(Protocol):
    """Texts with their targets, if there are any."""

    def text(self, row: int) -> tuple[str, str | None]: ...

    def gold(self, row: int) -> np.ndarray | None: ...


@dataclass(frozen=True)
class Task(ABC):
    """What is predicted for one data set, and which label is which class.

    An *output* is what a model predicts for one row, as an array: by default its logits, (classes,). `targets` and
    `outputs` below are arrays over rows, rows first; subclasses document their shapes. `DataTask` describes the methods
    that the data room calls.
    """

    labels: tuple[str, ...]  # class names in the order of the logits; one name for a number
    numbers: dict[str, int] = field(default_factory=dict, compare=False)  # label as written in the rows -> class
    # of the model that is asked: its logits are divided by it before they become probabilities; no prediction changes
    temperature: float = field(default=1.0, compare=False, kw_only=True)

    name: ClassVar[TaskName]  # the word that the user types
    words: ClassVar[TaskWords]  # those of the name
    form: ClassVar[Form]  # this and the next three follow from the words
    head: ClassVar[str]
    names_outputs: ClassVar[bool]
    vocabulary: ClassVar[bool] = False  # the classes are the tokens of the vocabulary, too many to remember
    outcome: ClassVar[Outcome] = "class"
    problem: ClassVar[Problem | None] = None  # `problem_type` in the model's config
    generates: ClassVar[bool] = False  # the targets are texts, one after the other
    decodes: ClassVar[bool] = False  # texts that the model generates by itself are scored too
    labels_are_classes: ClassVar[bool] = True  # the labels in the rows decide what the classes are
    own_targets: ClassVar[bool] = False  # rows need no label, since what is predicted is in the text
    draws: ClassVar[bool] = False  # what is predicted is drawn again in every epoch
    masks: int | None = field(default=None, kw_only=True)  # after so many epochs what is drawn comes back; None: never
    follows: ClassVar[bool] = False  # rows are pairs of texts that follow each other in a document
    two_heads: ClassVar[bool] = False  # the network has a second head, which is read once for each row
    label_lists: ClassVar[bool] = False  # the labels of a row are one for each of its parts, and no set
    ranks_rows: ClassVar[bool] = True  # an output holds the probability of every class of its row
    two_stacks: ClassVar[bool] = False  # the model reads with an encoder and writes with a decoder
    images: ClassVar[bool] = False  # the rows are images, all of one shape
    limits_length: ClassVar[bool] = True  # `predict` reads no more tokens of a text than were read in training
    how_to_ask: ClassVar[str] = "a text, or a pair of texts"  # what `row` reads
    row_metrics: ClassVar[tuple[str, ...]] = ()  # metrics that are the share of rows predicted correctly

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            cls.words = TASK_WORDS[cls.name]
        if "words" in vars(cls):
            cls.form, cls.head, cls.names_outputs, cls.vocabulary = (
                cls.words.form,
                cls.words.head,
                cls.words.named_outputs,
                cls.words.vocabulary,
            )

    @classmethod
    def without_labels(cls, choices: int, where: str) -> tuple[Task, str]:
        """Return the task whose classes no label decides, and a sentence about them.

        `choices`: the candidates of each question in the file `where`.
        """
        raise TypeError(f"the labels of {where} decide the classes")

    @property
    def classes(self) -> int:
        return len(self.labels)

    # from rows to batches

    @classmethod
    def row(cls, asked: Asked) -> tuple[str, str | None]:
        """Text and pair of an example that the user gives to `predict`."""
        text, pair = (asked, None) if isinstance(asked, str) else asked
        return clean(text), None if pair is None else clean(pair)

    @classmethod
    def asked(cls, row: Row) -> Asked:
        """Return a row of a file as an example for `predict`."""
        return (row.text, row.pair)  # type: ignore[return-value]

    @classmethod
    def choices_of(cls, rows: Texts) -> int:
        """Return how many candidates each of these rows has; 0 if rows have none."""
        return 0

    @property
    def target_width(self) -> int:
        return 1

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return the task with what `describe` needs of the model's tokenizer."""
        return self

    @abstractmethod
    def encode(self, label: Label, where: str) -> list[float]: ...

    def number(self, label: Any, where: str) -> int:
        if str(label) not in self.numbers:
            names = ", ".join(self.labels[:20])
            raise InputError(f"{where}: unknown label '{label}'; write one of {names}, or give all names with --labels")
        return self.numbers[str(label)]

    def with_spellings_of(self, labels: Iterable[Label]) -> Self:
        names = {str(name) for label in labels for name in (label if isinstance(label, tuple) else (label,))}
        return replace(self, numbers=self.numbers | match_spellings(names, self.numbers))

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        firsts, seconds = zip(*texts, strict=True)
        pairs = None if seconds[0] is None else with_mask_token(seconds, tokenizer)
        shortened = shorten_pairs(tokenizer, with_mask_token(firsts, tokenizer), pairs, length)
        encoded = encode_texts(tokenizer, *shortened, length)
        truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings or ())
        return Encoded(encoded["input_ids"], encoded["token_type_ids"], truncated)

    def align(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        return student, teacher

    def redrawn(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
        return tokens, rows

    def second_places(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray | None:
        return None

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return np.ones(len(rows), np.int64)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `at` and `layout` of a `View` of these rows; the rows of the view are their sequences, in order."""
        sequences = int(tokens.counts(rows).sum())
        return np.stack([np.arange(sequences), np.zeros(sequences, np.int64)], 1), None

    def inputs(
        self, arrays: dict[str, np.ndarray], real: np.ndarray, tokens: Tokens, rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arguments of `forward`, given (sequences, tokens) ids, mask, token types, and pixels if any."""
        return {name: arrays[name] for name in tokens.names}

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return np.asarray(examples.targets[rows])

    def impossible_classes(self, tokens: Tokens) -> tuple[int, ...]:
        return ()

    # from logits to outputs

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """Return the output of each row, given the (predictions, classes) logits of these rows."""
        return list(logits)

    def golds(self, examples: Examples) -> np.ndarray:
        """Return the targets of all examples as `score` takes them; NaN for rows without a label, -1 behind shorter ones."""
        if self.target_width:
            targets = np.array(examples.targets[examples.index], np.float32)
            targets[~np.asarray(examples.labelled[examples.index])] = np.nan
            return targets
        rows = [examples.gold(row) for row in examples.index]
        targets = np.full((len(rows), max((len(row) for row in rows if row is not None), default=2)), -1, np.float32)
        for place, row in enumerate(rows):
            targets[place, : None if row is None else len(row)] = np.nan if row is None else row
        return targets

    @abstractmethod
    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Return the predicted classes or values, (n,) or (n, …)."""

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Return (n, classes) the probability of each class."""
        return metrics.softmax(outputs / self.temperature)

    def confidence(self, outputs: np.ndarray) -> np.ndarray:
        """Return (n,) how sure the model is of each prediction."""
        return np.asarray(self.probabilities(outputs).max(-1))

    # for people

    def picture(self, text: str) -> str | None:
        """Return the address of the image that a page shows instead of the text; None for texts."""
        return None

    @abstractmethod
    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """Return a prediction as JSON, as `predict` gives it."""

    def summary(self, output: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        """Return a prediction in a few words for a table, and its probability if `describe` gives one."""
        prediction = self.describe_gold(self.decode(output[None])[0], text, pair)
        return prediction, self.describe(output, text, pair).get("probability")

    @abstractmethod
    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        """Return a target in a few words for a table."""

    # scoring

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The metrics that `score` returns, in its order; by the first one the best epoch on dev is chosen."""

    def score(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Return every metric over labelled rows, as fractions."""
        every = np.arange(len(outputs))
        return {metric: self.scorer(metric, targets, outputs)(every) for metric in self.metrics}

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        """Return one metric as a function of the rows that it is computed over, for intervals and paired tests."""
        if metric in self.row_metrics:
            right = self.is_correct(targets, outputs)
            return lambda rows: float(right[rows].mean())
        gold, predicted = self.compared(targets, outputs)
        average: Any = metric.removeprefix("f1_")
        return lambda rows: metrics.f1(gold[rows], predicted[rows], average)

    def compared(self, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gold and predicted classes or values, of rows or of words."""
        return targets.astype(int), self.decode(outputs)

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return (n,) bool: the whole row is predicted correctly."""
        return _whole_rows(self.decode(outputs) == targets.astype(int))

    def calibration_error(self, targets: np.ndarray, outputs: np.ndarray) -> float | None:
        """Return the expected calibration error of the probabilities; None if rows are not right or wrong."""
        if not self.row_metrics:
            return None
        return metrics.calibration_error(self.confidence(outputs), self.is_correct(targets, outputs))

    def share_right(self, outputs: np.ndarray) -> tuple[float, float, str] | None:
        """Return how many predictions are right, of how many, and what that is called, if none is right by chance.

        None: the predictions are compared with random ones to see whether a teacher knows the task.
        """
        return None

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Return the share of rows for which two models predict the same; None if that is not defined."""
        return float(_whole_rows(self.decode(ours) == self.decode(theirs)).mean())

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Return (n,) how much two models differ, weighted by the confidence of `theirs`; 0 or less where they agree."""
        same = _whole_rows(self.decode(theirs) == self.decode(ours))
        return np.where(same, -1.0, self.confidence(theirs))

    def details(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """Return what measurements.json says about each class."""
        return {}


def clean(text: Any) -> str:
    """The text without characters that tokenizers and rows cannot hold; a ValueError if it is not a text."""
    if not isinstance(text, str):
        raise ValueError
    return clean_text(text)


def _whole_rows(same: np.ndarray) -> np.ndarray:
    return same if same.ndim == 1 else np.asarray(same.all(1))
