"""What is written token by token: a prediction for every token of the text to be written, over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import Examples
from potstill.data.row import Label
from potstill.data.tokens import Tokens, ranges
from potstill.tasks.metrics import texts as translation_metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.task import Rows, Task

HEADER = 3  # rows of an answer before its letters
BY_BEAM = ("bleu_beam", "mode")  # metrics of what beam search finds
WRITTEN = 1  # the segment of the tokens that are to be written


class Answer(NamedTuple):
    """What a model gives for one row: how probable the gold text is to it, and what it writes itself."""

    loss: float  # of the gold text, summed over its tokens
    tokens: float
    right: float  # tokens that are the most probable ones after what stands before them
    mode: float = 0.0  # log probability of the whole text that beam search finds
    greedy: str | None = None
    beam: str | None = None

    def packed(self) -> np.ndarray:
        """(3 + letters, 2) numbers, since answers are kept as arrays: the code points of both texts behind a header."""
        texts = [np.array([*map(ord, text or "")], np.float32) for text in (self.greedy, self.beam)]
        sizes = [-1.0 if text is None else float(len(text)) for text in (self.greedy, self.beam)]
        found = np.full((HEADER + max(map(len, texts)), 2), -1, np.float32)
        found[:HEADER] = [[self.loss, self.tokens], [self.right, self.mode], sizes]
        for column, text in enumerate(texts):
            found[HEADER : HEADER + len(text), column] = text
        return found


def unpacked(answer: np.ndarray) -> Answer:
    (loss, tokens), (right, mode), sizes = answer[:HEADER].tolist()
    texts = [
        None if size < 0 else "".join(map(chr, answer[HEADER : HEADER + int(size), column].astype(int)))
        for column, size in enumerate(sizes)
    ]
    return Answer(loss, tokens, right, mode, *texts)


def as_letters(text: str) -> np.ndarray:
    """(1 + letters,) the number of its letters, then their code points."""
    return np.array([len(text), *map(ord, text)], np.float32)


def as_text(letters: np.ndarray) -> str:
    return "".join(map(chr, letters[1 : 1 + int(letters[0])].astype(int)))


@dataclass(frozen=True)
class Generating(Task):
    """The text to be written is the row's second one. `answers` are packed `Answer`s, `targets` gold texts as letters."""

    chance: ClassVar[str] = "share of right tokens"

    @property
    def problem(self) -> None:
        return None

    @property
    def names_outputs(self) -> bool:
        return False

    @property
    def generates(self) -> bool:
        return True

    def encode(self, label: Label, where: str) -> list[float]:
        return [0.0]  # the text is its own label

    def written(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places in the flat files of the tokens that are predicted; and how many there are in each sequence."""
        sequences = tokens.sequences(rows)
        places = ranges(tokens.offsets[sequences], tokens.offsets[sequences + 1])
        owners = np.repeat(np.arange(len(sequences)), tokens.sizes(sequences))
        there = np.asarray(tokens.segments[places]) == WRITTEN
        return places[there], np.bincount(owners[there], minlength=len(sequences))

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        _, counts = self.written(tokens, rows)
        if tokens.firsts is None:
            return counts
        several = tokens.counts(rows)
        found: np.ndarray = np.add.reduceat(counts, np.cumsum(several) - several)
        return found

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(predictions,) ids."""
        places, _ = self.written(tokens, rows)
        return np.asarray(tokens.ids[places], np.float32)

    def golds(self, examples: Examples) -> np.ndarray:
        """(n, 1 + letters); NaN where there is no text to be written. Of texts that nothing written is compared with, which
        may be long, (n, 2): the number of letters and a hash, which tell whether two runs were asked about the same."""
        texts = (str(pair or "") for _, pair in examples.texts())
        if self.decodes:
            every = list(texts)
            found = np.full((len(every), 1 + max(map(len, every), default=0)), -1, np.float32)
            for place, text in enumerate(every):
                found[place, : 1 + len(text)] = as_letters(text)
        else:
            told = [(len(text), xxhash.xxh32_intdigest(text.encode()) % 2**24) for text in texts]
            found = np.array(told, np.float32).reshape(-1, 2)
        found[~np.asarray(examples.labelled[examples.index])] = np.nan
        return found

    def read(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """How probable the gold text is; what is written by itself is added by `generated.answers`."""
        places, _ = self.written(tokens, rows)
        gold = np.asarray(tokens.ids[places], np.int64)
        highest = logits.max(-1)
        mine = logits[np.arange(len(gold)), gold]
        losses = highest - mine + np.log(np.exp(logits - highest[:, None]).sum(-1))
        ends = np.cumsum(self.predictions(tokens, rows))[:-1]
        parts = zip(np.split(losses, ends), np.split(logits.argmax(-1) == gold, ends), strict=True)
        return [Answer(float(loss.sum()), len(loss), float(right.sum())).packed() for loss, right in parts]

    def told(self, answer: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        one = unpacked(answer)
        return {"text": one.beam if one.beam is not None else one.greedy, "log_probability": one.mode}

    def in_words(self, answer: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        one = unpacked(answer)
        return one.greedy or "", None

    def gold_in_words(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return pair or ""

    # scoring

    def is_share(self, metric: str) -> bool:
        return False

    def right(self, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(n,) bool: texts that are written word for word."""
        if not self.decodes:
            return np.zeros(len(answers), bool)
        return np.array([unpacked(one).greedy == as_text(gold) for gold, one in zip(targets, answers, strict=True)])

    def calibration_error(self, targets: np.ndarray, answers: np.ndarray) -> None:
        return None

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Share of texts that both write alike; None where nothing is written but the gold text's probability told."""
        if not self.decodes:
            return None
        both = zip(ours, theirs, strict=True)
        return float(np.mean([unpacked(one).greedy == unpacked(other).greedy for one, other in both]))

    def dissent(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """How unlike the texts are; 0 where they are the same."""
        texts = [
            (unpacked(one).greedy or "", unpacked(other).greedy or "") for one, other in zip(ours, theirs, strict=True)
        ]
        return np.array([1 - translation_metrics.sentence_bleu(*both) if both[0] != both[1] else 0.0 for both in texts])

    def details(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
        return {}

    def score(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
        parts = Parts(targets, answers)
        return {metric: parts.score(metric, np.arange(len(answers))) for metric in parts.metrics}

    def scorer(self, metric: str, targets: np.ndarray, answers: np.ndarray) -> Score:
        parts = Parts(targets, answers)
        return lambda rows: parts.score(metric, rows)


class Parts:
    """What scores are sums of, row by row, so that they can be drawn anew quickly."""

    def __init__(self, targets: np.ndarray, answers: np.ndarray) -> None:
        self.targets, self.answers = targets, answers
        self.said = [unpacked(one) for one in answers]

    @property
    def metrics(self) -> list[str]:
        greedy = bool(self.said) and self.said[0].greedy is not None
        beam = bool(self.said) and self.said[0].beam is not None
        texts = ["bleu", *(["bleu_beam"] if beam else []), "chrf", *(["mode"] if beam else [])] if greedy else []
        asked = bool(self.said) and any(
            one.tokens for one in self.said
        )  # of an exported model only the texts are known
        return [*texts, *(["likelihood", "token_accuracy", "perplexity"] if asked else [])]

    def score(self, metric: str, rows: np.ndarray) -> float:
        if metric in ("bleu", "bleu_beam"):
            return translation_metrics.bleu_of(getattr(self, f"_{metric}")[rows].sum(0))
        if metric == "chrf":
            return translation_metrics.chrf_of(self._chrf[rows].sum(0))
        if metric == "mode":
            return float(np.exp(self.answers[rows, 1, 1]).mean())
        loss, tokens = self.answers[rows, 0].sum(0, dtype=np.float64)
        if metric == "token_accuracy":
            return float(self.answers[rows, 1, 0].sum() / max(tokens, 1.0))
        perplexity = translation_metrics.perplexity(loss, tokens)
        return perplexity if metric == "perplexity" else 1.0 / perplexity

    def _texts(self, kind: str) -> list[str]:
        return [getattr(one, kind) or "" for one in self.said]

    @cached_property
    def references(self) -> list[str]:
        return [as_text(gold) for gold in self.targets]

    @cached_property
    def _bleu(self) -> np.ndarray:
        return translation_metrics.bleu_statistics(self._texts("greedy"), self.references)

    @cached_property
    def _bleu_beam(self) -> np.ndarray:
        return translation_metrics.bleu_statistics(self._texts("beam"), self.references)

    @cached_property
    def _chrf(self) -> np.ndarray:
        return translation_metrics.chrf_statistics(self._texts("greedy"), self.references)


def ids_of(tokenizer: Any, texts: Sequence[str], length: int, **more: Any) -> tuple[list[list[int]], list[bool]]:
    """Token ids of at most `length` each, and whether something was cut off; the end token stays where there is one."""
    made = tokenizer(list(texts), truncation=True, max_length=length, return_attention_mask=False, **more)
    if made.encodings is not None:
        return made["input_ids"], [bool(one.overflowing) for one in made.encodings]
    return made["input_ids"], [len(one) >= length for one in made["input_ids"]]  # a tokenizer in Python does not say
