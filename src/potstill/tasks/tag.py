"""Tagging: a class for every word, read at its first piece; entities are counted as seqeval and conlleval count them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.examples import Examples
from potstill.data.row import Form, Label, split_parts
from potstill.data.tokens import Encoded, Tokens, ranges
from potstill.models.tokenizers.long_texts import beginnings
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Entity, Score, by_class, of_class, softmax
from potstill.tasks.task import Rows, Task, TaskName
from potstill.tasks.truncation import cut_at_the_end, encoded

ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")
ABSENT = -1  # stands for the words that a shorter sentence lacks beside a longer one


@dataclass(frozen=True)
class Tagging(Task):
    """`targets` are (n, words) classes, `answers` (n, words, 2) of class and probability; ABSENT fills short rows.

    Words that were cut off since the text is too long are answered "O", or with the first class where there is no O.
    """

    form: ClassVar[Form] = "words"
    head: ClassVar[str] = "TokenClassification"

    @property
    def name(self) -> TaskName:
        return "tag"

    @property
    def problem(self) -> None:
        return None

    @property
    def finds_entities(self) -> bool:
        return "O" in self.labels and all(ENTITY_TAG.fullmatch(label) for label in self.labels)

    @property
    def outside(self) -> int:
        return self.labels.index("O") if "O" in self.labels else 0

    @property
    def target_width(self) -> int:
        return 0

    def encode(self, label: Label, where: str) -> list[float]:
        return [float(self.number(tag, where)) for tag in label]

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """Words are joined by spaces, as in running text; a word's place is the piece that holds its first letter."""
        rows = [split_parts(text) for text, _ in texts]
        with cut_at_the_end(tokenizer):
            read = beginnings(tokenizer, [" ".join(words) for words in rows], length)
            made = encoded(tokenizer, read, None, length, return_offsets_mapping=True)
        places, shortened = [], 0
        for words, encoding in zip(rows, made.encodings, strict=True):
            inside = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
            ends = np.array(encoding.offsets)[inside, 1] if len(inside) else np.empty(0, int)
            starts = np.array([0, *accumulate(len(word) + 1 for word in words[:-1])])
            found = np.searchsorted(ends, starts, side="right")
            cut = bool(encoding.overflowing)
            shortened += cut
            if cut:
                found = found[found < len(inside)]
            # a word of which the tokenizer makes nothing is read where the next one is, or at the end
            places.append(np.append(inside, len(encoding.ids) - 1)[found])
        return Encoded(made["input_ids"], made["token_type_ids"], shortened, places=places)

    def aligned(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        """Where one tokenizer cuts a text earlier, the other's further words are left out as well."""
        ours, theirs = (np.diff(_offsets(one)) for one in (student, teacher))
        if np.array_equal(ours, theirs):
            return student, teacher
        kept = np.minimum(ours, theirs)
        return _first(student, kept), _first(teacher, kept)

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        offsets = _offsets(tokens)
        return np.asarray(offsets[rows + 1] - offsets[rows])

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        assert tokens.places is not None
        offsets = _offsets(tokens)
        positions = np.asarray(tokens.places[ranges(offsets[rows], offsets[rows + 1])], np.int64)
        return np.stack([np.repeat(np.arange(len(rows)), self.predictions(tokens, rows)), positions], 1), None

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        counts = self.predictions(tokens, rows)
        found = np.zeros(counts.sum(), np.float32)
        labelled = np.asarray(examples.labelled[rows])
        begins = examples.target_offsets[rows[labelled]]
        found[np.repeat(labelled, counts)] = examples.targets[ranges(begins, begins + counts[labelled])]
        return found

    def read(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        best = np.stack([logits.argmax(-1), softmax(logits).max(-1)], 1).astype(np.float32)
        said = np.split(best, np.cumsum(self.predictions(tokens, rows))[:-1])
        words = [len(split_parts(source.text(row)[0])) for row in rows]
        rest = np.array([[self.outside, 0.0]], np.float32)
        return [np.concatenate([one, rest.repeat(count - len(one), 0)]) for one, count in zip(said, words, strict=True)]

    def golds(self, examples: Examples) -> np.ndarray:
        rows = [examples.gold(row) for row in examples.index]
        found = np.full((len(rows), max((len(row) for row in rows if row is not None), default=1)), ABSENT, np.float32)
        for place, row in enumerate(rows):
            found[place, : len(row) if row is not None else None] = np.nan if row is None else row
        return found

    def decode(self, answers: np.ndarray) -> np.ndarray:
        """(n, words) classes."""
        return np.asarray(answers[..., 0]).astype(int)

    def told(self, answer: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"words", "tags", "probabilities"}, and {"entities": [{"type", "text", "first", "last"}]} where tags name them."""
        words = split_parts(text) if text else []
        tags = self._tags(self.decode(answer[: len(words)]))
        said: dict[str, Any] = {"words": words, "tags": tags}
        said["probabilities"] = [round(float(one), 6) for one in answer[: len(words), 1]]
        if self.finds_entities:
            said["entities"] = [
                {"type": kind, "text": " ".join(words[first : last + 1]), "first": first, "last": last}
                for kind, first, last in self._entities(self.decode(answer[: len(words)]))
            ]
        return said

    def in_words(self, answer: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        return self.gold_in_words(answer[..., 0], text, pair), None

    def gold_in_words(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        words = split_parts(text)
        classes = gold[: len(words)].astype(int)
        if not self.finds_entities:
            return " ".join(self._tags(classes))
        found = self._entities(classes)
        return "; ".join(f"{kind}: {' '.join(words[first : last + 1])}" for kind, first, last in found) or "none"

    @property
    def metrics(self) -> list[str]:
        return ["f1", "precision", "recall", "accuracy"] if self.finds_entities else ["accuracy", "f1_macro"]

    def score(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
        every = np.arange(len(targets))
        return {metric: self.scorer(metric, targets, answers)(every) for metric in self.metrics}

    def scorer(self, metric: str, targets: np.ndarray, answers: np.ndarray) -> Score:
        """Entities and words are counted in each sentence once; a draw of sentences adds the counts up."""
        said = self.fitted(targets, answers)[..., 0].astype(int)
        gold = targets.astype(int)
        there = gold != ABSENT
        if metric == "f1_macro":
            return lambda rows: metrics.f1(gold[rows][there[rows]], said[rows][there[rows]], "macro")
        if metric == "accuracy":
            right, words = ((gold == said) & there).sum(1), there.sum(1)
            return lambda rows: float(right[rows].sum() / max(words[rows].sum(), 1))
        correct, claimed, true = self._entity_counts(gold, said).T
        above, below = {
            "f1": (2 * correct, claimed + true),
            "precision": (correct, claimed),
            "recall": (correct, true),
        }[metric]
        return lambda rows: float(above[rows].sum() / max(below[rows].sum(), 1))

    def is_share(self, metric: str) -> bool:
        return False

    def right(self, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(n,) bool: sentences of which every word is right."""
        said = self.decode(self.fitted(targets, answers))
        same: np.ndarray = ((said == targets.astype(int)) | (targets == ABSENT)).all(1)
        return same

    def calibration_error(self, targets: np.ndarray, answers: np.ndarray) -> float | None:
        answers, there = self.fitted(targets, answers), targets != ABSENT
        said = answers[there]
        return metrics.calibration_error(said[:, 1], self.decode(said) == targets[there].astype(int))

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float:
        """Share of words with the same tag."""
        there = theirs[..., 0] != ABSENT
        return float((self.decode(ours) == self.decode(theirs))[there].mean())

    def dissent(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        differ = (self.decode(ours) != self.decode(theirs)) & (theirs[..., 0] != ABSENT)
        return np.asarray((differ * theirs[..., 1]).max(1))

    def details(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
        """Confusion of words' tags, and the quality of each type of entity, or of each tag."""
        there = targets != ABSENT
        said, gold = self.decode(self.fitted(targets, answers)), targets.astype(int)
        found = by_class(self.labels, gold[there], said[there], None)
        if self.finds_entities:
            kinds = sorted({kind for tag in self._readable for kind, *_ in metrics.entities([tag])})
            counts = {kind: self._entity_counts(gold, said, kind).sum(0) for kind in kinds}
            found["per_class"] = {
                kind: of_class(right, true, claimed) for kind, (right, claimed, true) in counts.items()
            }
        return found

    def fitted(self, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """As many words as the longest target has: unlabelled rows may be longer."""
        return answers[:, : targets.shape[1]]

    def _tags(self, classes: np.ndarray) -> list[str]:
        return [self.labels[one] for one in classes if one != ABSENT]

    @property
    def _readable(self) -> list[str]:
        """The tags in letters of IOBES: BILOU calls the last word of an entity L, and the only one U."""
        other = {"L": "E", "U": "S"} if any(label[:1] in "LU" for label in self.labels) else {}
        return [other.get(label[:1], label[:1]) + label[1:] for label in self.labels]

    def _entities(self, classes: np.ndarray) -> list[Entity]:
        readable = self._readable
        return metrics.entities([readable[one] for one in classes if one != ABSENT])

    def _entity_counts(self, gold: np.ndarray, said: np.ndarray, kind: str | None = None) -> np.ndarray:
        """(n, 3) correct, claimed and true entities of each sentence."""
        counts = np.zeros((len(gold), 3))
        for place, (ours, theirs) in enumerate(zip(gold, said, strict=True)):
            words = int((ours != ABSENT).sum())
            true, claimed = (
                {one for one in self._entities(tags[:words]) if kind in (None, one[0])} for tags in (ours, theirs)
            )
            counts[place] = len(true & claimed), len(claimed), len(true)
        return counts


def _offsets(tokens: Tokens) -> np.ndarray:
    assert tokens.place_offsets is not None
    return tokens.place_offsets


def _first(tokens: Tokens, kept: np.ndarray) -> Tokens:
    """With the first places of each sequence alone."""
    assert tokens.places is not None
    begins = _offsets(tokens)[:-1]
    offsets = np.concatenate([[0], np.cumsum(kept)])
    return replace(tokens, places=tokens.places[ranges(begins, begins + kept)], place_offsets=offsets)
