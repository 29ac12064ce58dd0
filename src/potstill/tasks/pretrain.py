"""Masked tokens and the next sentence in one step, as BERT was pre-trained (Devlin et al., 2019, arXiv:1810.04805)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from potstill.data.examples import Examples
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.drawn import RIGHT, scored
from potstill.tasks.mask import MaskedLanguageModelling
from potstill.tasks.next_sentence import classes_of, refuse_other_rows, with_other_seconds
from potstill.tasks.task import Rows

NEXT_SENTENCE = "next_sentence"  # the metric


@dataclass(frozen=True)
class Pretraining(MaskedLanguageModelling):
    """A network with two heads predicts both. Each loss is averaged over its own predictions, and they are added.

    Of an output, the first prediction is that of the next sentence; the others are those of task `mask`.
    """

    name = "pretrain"
    predicted = "masked tokens are predicted, and whether the second text is the next one"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", NEXT_SENTENCE, "likelihood", "perplexity")
    follows = True
    two_heads = True

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        encoded = super().tokenize(texts, tokenizer, length)
        asked = all(pair is None for _, pair in texts)  # `predict` fills the masks of one text too
        return encoded if asked else refuse_other_rows(texts, tokenizer, encoded)

    def redrawn(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
        return with_other_seconds(tokens, rows)

    def second_places(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray | None:
        if tokens.keys is None:
            return None
        return np.stack([np.arange(len(rows)), np.zeros(len(rows), np.int64)], 1)

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return super().predictions(tokens, rows) + (tokens.keys is not None)

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(predictions,) ids of the masked tokens of all rows, then the class of each row."""
        masked = super().targets(examples, tokens, rows)
        return np.concatenate([masked, classes_of(tokens, rows).astype(np.float32)])

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        if tokens.keys is None:
            return super().read_logits(logits, tokens, rows, source)
        words, pairs = logits[: -len(rows)], logits[-len(rows) :, :2]
        first = scored(pairs, classes_of(tokens, rows), np.asarray).astype(np.float32)[:, None]
        masked = super().read_logits(words, tokens, rows, source)
        return [np.concatenate(both) for both in zip(first, masked, strict=True)]

    def places_of(self, metric: str, outputs: np.ndarray) -> np.ndarray:
        there = outputs[..., RIGHT] >= 0
        is_first = np.arange(there.shape[1]) == 0
        return np.asarray(there & (is_first if metric == NEXT_SENTENCE else ~is_first))
