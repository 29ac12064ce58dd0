"""Multiple choice: one passage and question, several candidates, one set of logits over them (RACE, SWAG)."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.forms.choices import MOST_CHOICES, fill_candidate
from potstill.data.row import join_parts, split_parts
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens
from potstill.errors import InputError
from potstill.tasks.classify import TextClassification
from potstill.tasks.task import Asked, Task, clean
from potstill.tasks.truncation import encode_texts, shorten_pairs

EXAMPLE = '{"text": "It rained .", "question": "it was _", "choices": ["wet", "dry"]}'


@dataclass(frozen=True)
class MultipleChoice(TextClassification):
    """The classes are the candidates, A, B, C …; each is a sequence of its own, for which the head gives one number."""

    name = "choose"
    problem = None
    labels_are_classes = False
    how_to_ask = f"a question as JSON, such as {EXAMPLE}"
    metrics = ("accuracy", "matthews")  # the F1 of a letter means nothing

    @classmethod
    def without_labels(cls, choices: int, where: str) -> tuple[Task, str]:
        if not 2 <= choices <= MOST_CHOICES:
            raise InputError(f"{where}: a question has {choices} candidates; give from 2 to {MOST_CHOICES}")
        letters = tuple(string.ascii_uppercase[:choices])
        numbers = {letter: number for number, letter in enumerate(letters)}
        return cls(letters, numbers), f"one of {choices} candidates is chosen"

    @classmethod
    def choices_of(cls, rows: Texts) -> int:
        counts = {len(split_parts(str(pair))) for _, pair in rows}
        if len(counts) > 1:
            raise InputError(f"questions have {sorted(counts)} candidates; give all the same number")
        return counts.pop()

    @classmethod
    def row(cls, asked: Asked) -> tuple[str, str | None]:
        """{"text", "question", "choices"} as an object or as JSON, or the row of a file, whose candidates are joined."""
        if isinstance(asked, str):
            asked = json.loads(asked)
        if not isinstance(asked, Mapping):
            text, pair = (asked, None) if isinstance(asked, str) else asked
            if not isinstance(pair, str):
                raise ValueError
            return clean(text), pair
        if isinstance(asked["choices"], str):
            raise ValueError
        question = clean(asked.get("question") or "")
        seconds = [fill_candidate(question, clean(candidate)) for candidate in asked["choices"]]
        return clean(asked.get("text") or ""), join_parts(seconds)

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """Where passage and candidate are too long together, the longer of the two is truncated."""
        pairs = [(text, candidate) for text, pair in texts for candidate in split_parts(str(pair))]
        passages, candidates = map(list, zip(*pairs, strict=True))
        encoded = encode_texts(tokenizer, *shorten_pairs(tokenizer, passages, candidates, length), length)
        cut = [bool(encoding.overflowing) for encoding in encoded.encodings or ()]
        truncated = sum(any(cut[i : i + self.classes]) for i in range(0, len(cut), self.classes))
        return Encoded(encoded["input_ids"], encoded["token_type_ids"], truncated, counts=[self.classes] * len(texts))

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        at, _ = super().places(tokens, rows)
        return at, np.arange(len(rows) * self.classes).reshape(len(rows), self.classes)

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"label", "candidate", "probability", "probabilities"}"""
        prediction = super().describe(output, text, pair)
        candidate = split_parts(str(pair))[self.labels.index(prediction["label"])]
        return {"label": prediction["label"], "candidate": candidate, **prediction}
