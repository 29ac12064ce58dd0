"""Multiple choice: one passage and question, several candidates, one set of logits over them (RACE, SWAG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.row import Form, split_parts
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.task import Task, TaskName
from potstill.tasks.truncation import both_cut, encoded


@dataclass(frozen=True)
class Choosing(Task):
    """The classes are the candidates, A, B, C …; each is a sequence of its own, and the head gives one number for it."""

    form: ClassVar[Form] = "choices"
    head: ClassVar[str] = "MultipleChoice"

    @property
    def name(self) -> TaskName:
        return "choose"

    @property
    def problem(self) -> None:
        return None

    @property
    def names_outputs(self) -> bool:
        return False

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """The passage is cut where the two are too long: tokens are taken away from the longer one."""
        pairs = [(text, candidate) for text, pair in texts for candidate in split_parts(str(pair))]
        passages, candidates = both_cut(tokenizer, [one for one, _ in pairs], [other for _, other in pairs], length)
        made = encoded(tokenizer, passages, candidates, length)
        cut = [bool(one.overflowing) for one in made.encodings or ()]
        shortened = sum(any(cut[i : i + self.classes]) for i in range(0, len(cut), self.classes))
        return Encoded(made["input_ids"], made["token_type_ids"], shortened, counts=[self.classes] * len(texts))

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        at, _ = super().places(tokens, rows)
        return at, np.arange(len(rows) * self.classes).reshape(len(rows), self.classes)

    def score(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
        """Of letters there is no F1 that means anything."""
        scores = super().score(targets, answers)
        return {"accuracy": scores["accuracy"], "matthews": scores["matthews"]}

    def told(self, answer: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"label", "candidate", "probability", "probabilities"}."""
        said = super().told(answer, text, pair)
        candidate = split_parts(str(pair))[self.labels.index(said["label"])]
        return {"label": said["label"], "candidate": candidate, **said}
