"""Token classification: a class for every word, read at its first token; entities are counted as seqeval and conlleval do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from potstill.data.examples import Examples
from potstill.data.row import Label, Row, join_parts, split_parts
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens, ranges
from potstill.models.tokenizers.long_texts import beginnings
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Entity, Score, by_class, of_class, softmax
from potstill.tasks.task import Asked, Rows, Task, clean
from potstill.tasks.truncation import encode_texts, truncated_on_the_right

WORDS = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")  # of running text, about as newspaper corpora split it
ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")
ABSENT = -1  # fills short rows


@dataclass(frozen=True)
class TokenClassification(Task):
    """`targets` are (n, words) classes, `outputs` (n, words, 2) of class and probability; ABSENT fills short rows.

    Words that were truncated are predicted as "O", or as the first class if there is no O.
    """

    name = "tag"
    label_lists = True
    ranks_rows = False
    target_width = 0  # differs from row to row

    @classmethod
    def row(cls, asked: Asked) -> tuple[str, str | None]:
        """A list of words, or a text that is split at spaces and punctuation."""
        words = [asked] if isinstance(asked, tuple) else asked
        words = WORDS.findall(words) if isinstance(words, str) else [str(word) for word in words]
        return join_parts(map(clean, words)), None

    @classmethod
    def asked(cls, row: Row) -> Asked:
        return split_parts(row.text)

    @property
    def finds_entities(self) -> bool:
        return "O" in self.labels and all(ENTITY_TAG.fullmatch(label) for label in self.labels)

    @property
    def outside(self) -> int:
        return self.labels.index("O") if "O" in self.labels else 0

    def encode(self, label: Label, where: str) -> list[float]:
        return [float(self.number(tag, where)) for tag in label]

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """Words are joined by spaces, as in running text; a word is read at the token that holds its first character."""
        rows = [split_parts(text) for text, _ in texts]
        with truncated_on_the_right(tokenizer):
            joined = beginnings(tokenizer, [" ".join(words) for words in rows], length)
            encoded = encode_texts(tokenizer, joined, None, length, return_offsets_mapping=True)
        places, truncated = [], 0
        for words, encoding in zip(rows, encoded.encodings, strict=True):
            inside = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
            ends = np.array(encoding.offsets)[inside, 1] if len(inside) else np.empty(0, int)
            starts = np.array([0, *accumulate(len(word) + 1 for word in words[:-1])])
            tokens = np.searchsorted(ends, starts, side="right")
            if encoding.overflowing:
                truncated += 1
                tokens = tokens[tokens < len(inside)]
            # a word for which the tokenizer gives no token is read where the next word is, or at the end
            places.append(np.append(inside, len(encoding.ids) - 1)[tokens])
        return Encoded(encoded["input_ids"], encoded["token_type_ids"], truncated, places=places)

    def align(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        """Where one tokenizer truncates a text earlier, the other's further words are dropped as well."""
        ours, theirs = (np.diff(_offsets(tokens)) for tokens in (student, teacher))
        if np.array_equal(ours, theirs):
            return student, teacher
        kept = np.minimum(ours, theirs)
        return _first_places(student, kept), _first_places(teacher, kept)

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
        targets = np.zeros(counts.sum(), np.float32)
        labelled = np.asarray(examples.labelled[rows])
        begins = examples.target_offsets[rows[labelled]]
        targets[np.repeat(labelled, counts)] = examples.targets[ranges(begins, begins + counts[labelled])]
        return targets

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        probabilities = softmax(logits / self.temperature)
        best = np.stack([logits.argmax(-1), probabilities.max(-1)], 1).astype(np.float32)
        outputs = np.split(best, np.cumsum(self.predictions(tokens, rows))[:-1])
        words = [len(split_parts(source.text(row)[0])) for row in rows]
        truncated = np.tile(np.array([[self.outside, 0.0]], np.float32), (max(words, default=0), 1))
        pairs = zip(outputs, words, strict=True)
        return [np.concatenate([output, truncated[: count - len(output)]]) for output, count in pairs]

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """(n, words) classes."""
        return np.asarray(outputs[..., 0]).astype(int)

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"words", "tags", "probabilities"}, and {"entities": [{"type", "text", "first", "last"}]} for entity tags."""
        words = split_parts(text) if text else []
        classes = self.decode(output[: len(words)])
        prediction: dict[str, Any] = {"words": words, "tags": self._tags(classes)}
        prediction["probabilities"] = [round(float(probability), 6) for probability in output[: len(words), 1]]
        if self.finds_entities:
            prediction["entities"] = [
                {"type": kind, "text": " ".join(words[first : last + 1]), "first": first, "last": last}
                for kind, first, last in self._entities(classes)
            ]
        return prediction

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        words = split_parts(text)
        classes = gold[: len(words)].astype(int)
        if not self.finds_entities:
            return " ".join(self._tags(classes))
        entities = self._entities(classes)
        return "; ".join(f"{kind}: {' '.join(words[first : last + 1])}" for kind, first, last in entities) or "none"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy") if self.finds_entities else ("accuracy", "f1_macro")

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        """Entities and words are counted once per sentence; a sample of sentences adds the counts up."""
        predicted, gold = self.decode(self.fitted(targets, outputs)), targets.astype(int)
        there = gold != ABSENT
        if metric == "f1_macro":
            return lambda rows: metrics.f1(gold[rows][there[rows]], predicted[rows][there[rows]], "macro")
        if metric == "accuracy":
            right, words = ((gold == predicted) & there).sum(1), there.sum(1)
            return lambda rows: float(right[rows].sum() / max(words[rows].sum(), 1))
        correct, claimed, true = self._entity_counts(gold, predicted).T
        above = 2 * correct if metric == "f1" else correct
        below = {"f1": claimed + true, "precision": claimed, "recall": true}[metric]
        return lambda rows: float(above[rows].sum() / max(below[rows].sum(), 1))

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        return super().is_correct(targets, self.fitted(targets, outputs))

    def compared(self, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        there = targets != ABSENT
        return targets[there].astype(int), self.decode(self.fitted(targets, outputs)[there])

    def calibration_error(self, targets: np.ndarray, outputs: np.ndarray) -> float | None:
        """Over words."""
        gold, predicted = self.compared(targets, outputs)
        stated = self.fitted(targets, outputs)[targets != ABSENT, 1]
        return metrics.calibration_error(stated, predicted == gold)

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float:
        """Share of words with the same tag."""
        there = theirs[..., 0] != ABSENT
        return float((self.decode(ours) == self.decode(theirs))[there].mean())

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        differ = (self.decode(ours) != self.decode(theirs)) & (theirs[..., 0] != ABSENT)
        return np.asarray((differ * theirs[..., 1]).max(1))

    def details(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """The confusion matrix of words, and the quality of each type of entity, or of each tag."""
        details = by_class(self.labels, *self.compared(targets, outputs), None)
        if self.finds_entities:
            predicted, gold = self.decode(self.fitted(targets, outputs)), targets.astype(int)
            kinds = sorted({kind for tag in self._iobes for kind, *_ in metrics.entities([tag])})
            counts = {kind: self._entity_counts(gold, predicted, kind).sum(0) for kind in kinds}
            qualities = {kind: of_class(right, true, claimed) for kind, (right, claimed, true) in counts.items()}
            details["per_class"] = qualities
        return details

    def fitted(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """As many words as the longest target has: rows without a label may be longer."""
        return outputs[:, : targets.shape[1]]

    def _tags(self, classes: np.ndarray) -> list[str]:
        return [self.labels[number] for number in classes if number != ABSENT]

    @property
    def _iobes(self) -> list[str]:
        """The tags with the prefixes of IOBES: BILOU has L for the last word of an entity and U for a single word."""
        other = {"L": "E", "U": "S"} if any(label[:1] in "LU" for label in self.labels) else {}
        return [other.get(label[:1], label[:1]) + label[1:] for label in self.labels]

    def _entities(self, classes: np.ndarray) -> list[Entity]:
        tags = self._iobes
        return metrics.entities([tags[number] for number in classes if number != ABSENT])

    def _entity_counts(self, gold: np.ndarray, predicted: np.ndarray, kind: str | None = None) -> np.ndarray:
        """(n, 3) correct, claimed and true entities of each sentence."""
        counts = np.zeros((len(gold), 3))
        for place, (ours, theirs) in enumerate(zip(gold, predicted, strict=True)):
            words = int((ours != ABSENT).sum())
            true, claimed = (
                {entity for entity in self._entities(tags[:words]) if kind in (None, entity[0])}
                for tags in (ours, theirs)
            )
            counts[place] = len(true & claimed), len(claimed), len(true)
        return counts


def _offsets(tokens: Tokens) -> np.ndarray:
    assert tokens.place_offsets is not None
    return tokens.place_offsets


def _first_places(tokens: Tokens, kept: np.ndarray) -> Tokens:
    """The same tokens with the first `kept` places of each sequence."""
    assert tokens.places is not None
    begins = _offsets(tokens)[:-1]
    offsets = np.concatenate([[0], np.cumsum(kept)])
    return replace(tokens, places=tokens.places[ranges(begins, begins + kept)], place_offsets=offsets)
