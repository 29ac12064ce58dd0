"""Next sentence prediction: does the second text follow the first in its document? (Devlin et al., 2019, arXiv:1810.04805)

Rows are pairs of texts that follow each other. When a batch is made, half of the rows get the second text of a row of another
document: a function of the seed, the epoch and the row's key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potstill.data.examples import Examples
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens, ranges
from potstill.errors import InputError
from potstill.tasks.drawn import RIGHT, DrawnPredictions, scored
from potstill.tasks.metrics.labels import softmax
from potstill.tasks.task import Rows

NEXT, OTHER = 0, 1  # the classes, as transformers numbers them
FALSE_SHARE = 0.5
OWN_NUMBERS = 0x6E657874  # added to the seed, so that masks are drawn from other numbers


def classes_of(tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    """(n,) NEXT, or OTHER for rows that get another second text."""
    return _drawn(tokens, rows)[0]


def with_other_seconds(tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
    """Return the rows as tokens of their own, with the second texts that they have now. A second call changes nothing."""
    if tokens.documents is None:  # changed already, or only asked about
        return tokens, rows
    assert tokens.keys is not None
    classes, draws = _drawn(tokens, rows)
    seconds = np.where(classes == NEXT, rows, _others(tokens.documents, rows, draws))
    begins, ends = tokens.offsets[rows], _seconds_of(tokens, rows)
    more, last = _seconds_of(tokens, seconds), tokens.offsets[seconds + 1]
    positions = ranges(np.stack([begins, more], 1).ravel(), np.stack([ends, last], 1).ravel())
    sizes = (ends - begins) + (last - more)
    changed = replace(
        tokens,
        ids=np.asarray(tokens.ids[positions]),
        segments=np.asarray(tokens.segments[positions]),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        keys=np.asarray(tokens.keys[rows]),
        documents=None,
    )
    return changed, np.arange(len(rows))


def _drawn(tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) classes, and (n,) numbers from 0 to below 1 that choose the other second text."""
    numbers = replace(tokens, seed=(*tokens.seed, OWN_NUMBERS)).drawn(rows, 2)
    return np.where(numbers[:, 0] < FALSE_SHARE, OTHER, NEXT), numbers[:, 1]


def _others(documents: np.ndarray, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(n,) for each row one of all rows of other documents, each as likely."""
    own = documents[rows]
    begins, ends = np.searchsorted(documents, own, "left"), np.searchsorted(documents, own, "right")
    places = (draws * (len(documents) - (ends - begins))).astype(np.int64)
    return np.asarray(np.where(places < begins, places, places + (ends - begins)))


def _seconds_of(tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    """(n,) where the second text of each row begins in the flat arrays: its tokens have type 1."""
    begins, ends = tokens.offsets[rows], tokens.offsets[rows + 1]
    sizes = np.asarray(ends - begins)
    types = tokens.segments[ranges(begins, ends)].astype(np.int64)
    if not types.any():
        raise InputError(
            "the rows are single texts, and only a run joins those that follow each other; measure it there"
        )
    return np.asarray(ends - np.add.reduceat(types, np.cumsum(sizes) - sizes))


def refuse_other_rows(texts: Texts, tokenizer: Tokenizer, encoded: Encoded) -> Encoded:
    """Pairs, in which the tokenizer tells the second text from the first."""
    if any(pair is None for _, pair in texts):
        raise InputError(
            "task 'next_sentence' reads pairs of texts that follow each other; write windows = true in [data]"
        )
    if not all(1 in types for types in encoded.segments):
        name = tokenizer.name_or_path or "the model"
        raise InputError(f"the tokenizer of {name} does not tell two texts apart; use a BERT, or write task = 'mask'")
    return encoded


@dataclass(frozen=True)
class NextSentence(DrawnPredictions):
    """Outputs have one prediction, whose name is its class. Pairs that are only asked about (`predict`) have (2,) probabilities."""

    labels: tuple[str, ...] = ()

    name = "next_sentence"
    predicted = "half of the second texts are replaced by those of other documents, which is predicted"
    how_to_ask = "a pair of texts"
    metrics = ("accuracy", "likelihood")
    follows = True

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        asked = [(text, "" if pair is None else pair) for text, pair in texts]
        return refuse_other_rows(texts, tokenizer, super().tokenize(asked, tokenizer, length))

    def redrawn(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
        return with_other_seconds(tokens, rows)

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return classes_of(tokens, rows).astype(np.float32)

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        if tokens.keys is None:
            return list(softmax(logits))
        return list(scored(logits, classes_of(tokens, rows), np.asarray).astype(np.float32)[:, None])

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"next": whether the second text follows the first, "probability"}"""
        best = int(output.argmax())
        return {"next": best == NEXT, "probability": round(float(output[best]), 6)}

    def summary(self, output: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        return ("right" if output[0, RIGHT] else "wrong"), None
