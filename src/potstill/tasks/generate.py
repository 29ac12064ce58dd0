"""What translation and language modelling share: a prediction for every target token, over the whole vocabulary.

Outputs of every task are stored as float32 arrays in one safetensors file, so that any two models of a run can be compared
row by row. A generated text is therefore stored as the code points of its characters: each is a whole number below
2**24, which a float32 holds exactly. `Generated.pack` and `unpack` are the only places that know this layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import Examples
from potstill.data.row import Label
from potstill.data.tokens import Tokens, ranges
from potstill.tasks.metrics import texts as text_metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.task import Rows, Task

HEADER = 3  # rows of a packed output before its characters
BY_BEAM = ("bleu_beam", "mode")  # metrics of texts found by beam search
TARGET = 1  # token type of the target's tokens


class Generated(NamedTuple):
    """The output for one row: how probable the gold text is, and which texts the model generates itself."""

    loss: float  # of the gold text, summed over its tokens
    tokens: float
    right: float  # tokens of the gold text that are the most probable ones after those before them
    mode: float = 0.0  # log probability of the text that beam search finds
    greedy: str | None = None
    beam: str | None = None

    def pack(self) -> np.ndarray:
        """(HEADER + characters, 2): loss and tokens, right and mode, both lengths, then a column for each text."""
        texts = [np.array([*map(ord, text or "")], np.float32) for text in (self.greedy, self.beam)]
        sizes = [-1.0 if text is None else float(len(text)) for text in (self.greedy, self.beam)]
        packed = np.full((HEADER + max(map(len, texts)), 2), -1, np.float32)
        packed[:HEADER] = [[self.loss, self.tokens], [self.right, self.mode], sizes]
        for column, text in enumerate(texts):
            packed[HEADER : HEADER + len(text), column] = text
        return packed


def unpack(output: np.ndarray) -> Generated:
    (loss, tokens), (right, mode), sizes = output[:HEADER].tolist()
    columns = zip(sizes, output[HEADER:].T, strict=True)
    texts = [None if size < 0 else "".join(map(chr, column[: int(size)].astype(int))) for size, column in columns]
    return Generated(loss, tokens, right, mode, *texts)


def text_to_array(text: str) -> np.ndarray:
    """(1 + characters,): the number of characters, then their code points."""
    return np.array([len(text), *map(ord, text)], np.float32)


def array_to_text(array: np.ndarray) -> str:
    return "".join(map(chr, array[1 : 1 + int(array[0])].astype(int)))


def text_hashes(examples: Examples, texts: Iterable[str]) -> np.ndarray:
    """(n, 2) length and hash of each example's text, NaN for those without a target: enough to see equal rows."""
    hashes = [(len(text), xxhash.xxh32_intdigest(text.encode()) % 2**24) for text in texts]
    golds = np.array(hashes, np.float32).reshape(-1, 2)
    golds[~np.asarray(examples.labelled[examples.index])] = np.nan
    return golds


@dataclass(frozen=True)
class Generation(Task):
    """The target is the row's second text. `outputs` are packed `Generated`s, `targets` gold texts as arrays."""

    labels: tuple[str, ...] = ()

    labels_are_classes = False
    generates = True
    limits_length = False

    @classmethod
    def without_labels(cls, choices: int, where: str) -> tuple[Task, str]:
        return cls(()), "texts are generated"

    def encode(self, label: Label, where: str) -> list[float]:
        return [0.0]  # the text is its own label

    def target_tokens(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the predicted tokens in the flat arrays of `tokens`, and how many each sequence has."""
        sequences = tokens.sequences(rows)
        positions = ranges(tokens.offsets[sequences], tokens.offsets[sequences + 1])
        owners = np.repeat(np.arange(len(sequences)), tokens.sizes(sequences))
        predicted = np.asarray(tokens.segments[positions]) == TARGET
        return positions[predicted], np.bincount(owners[predicted], minlength=len(sequences))

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        _, counts = self.target_tokens(tokens, rows)
        if tokens.firsts is None:
            return counts
        windows = tokens.counts(rows)
        return np.asarray(np.add.reduceat(counts, np.cumsum(windows) - windows))

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(predictions,) ids."""
        positions, _ = self.target_tokens(tokens, rows)
        return np.asarray(tokens.ids[positions], np.float32)

    def golds(self, examples: Examples) -> np.ndarray:
        """(n, 1 + characters); NaN for rows without a target.

        If generated texts are not scored, (n, 2): length and hash, enough to see whether two runs had the same rows.
        """
        texts = (str(pair or "") for _, pair in examples.texts())
        if not self.decodes:
            return text_hashes(examples, texts)
        every = list(texts)
        golds = np.full((len(every), 1 + max(map(len, every), default=0)), -1, np.float32)
        for place, text in enumerate(every):
            golds[place, : 1 + len(text)] = text_to_array(text)
        golds[~np.asarray(examples.labelled[examples.index])] = np.nan
        return golds

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """How probable the gold text is; `inference.answers` adds the texts that the model generates."""
        positions, _ = self.target_tokens(tokens, rows)
        gold = np.asarray(tokens.ids[positions], np.int64)
        highest = logits.max(-1)
        losses = highest - logits[np.arange(len(gold)), gold] + np.log(np.exp(logits - highest[:, None]).sum(-1))
        ends = np.cumsum(self.predictions(tokens, rows))[:-1]
        parts = zip(np.split(losses, ends), np.split(logits.argmax(-1) == gold, ends), strict=True)
        return [Generated(float(loss.sum()), len(loss), float(right.sum())).pack() for loss, right in parts]

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """(n,) the texts found by greedy search."""
        return np.array([unpack(output).greedy for output in outputs], object)

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"text", "log_probability"}"""
        generated = unpack(output)
        best = generated.beam if generated.beam is not None else generated.greedy
        return {"text": best, "log_probability": generated.mode}

    def summary(self, output: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        return unpack(output).greedy or "", None

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return pair or ""

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        """The counts of each row are computed once, so that any sample of rows is scored quickly."""
        if metric in ("bleu", "bleu_beam", "chrf"):
            generated = map(unpack, outputs)
            texts = [(output.beam if metric == "bleu_beam" else output.greedy) or "" for output in generated]
            references = [array_to_text(gold) for gold in targets]
            name = metric.removesuffix("_beam")
            counts = text_metrics.statistics(name, texts, references)
            return lambda rows: text_metrics.corpus_score(name, counts[rows].sum(0))
        return lambda rows: _score(metric, outputs[rows])

    def score(self, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Only the metrics of what the outputs hold: an exported model only generates, others may not search by beam."""
        if not len(outputs):
            return {}
        first, has_loss = unpack(outputs[0]), bool(outputs[:, 0, 1].any())
        has = {"bleu": first.greedy is not None, "chrf": first.greedy is not None}
        has |= dict.fromkeys(BY_BEAM, first.beam is not None)
        names, every = [name for name in self.metrics if has.get(name, has_loss)], np.arange(len(outputs))
        return {metric: self.scorer(metric, targets, outputs)(every) for metric in names}

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """(n,) bool: the generated text is the gold text, character by character."""
        if not self.decodes:
            return np.zeros(len(outputs), bool)
        return self.decode(outputs) == np.array([array_to_text(gold) for gold in targets], object)

    def share_right(self, outputs: np.ndarray) -> tuple[float, float, str]:
        return float(outputs[:, 1, 0].sum()), float(outputs[:, 0, 1].sum()), "share of right tokens"

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Share of rows for which both generate the same text; None if no texts are generated."""
        return super().agreement(ours, theirs) if self.decodes else None

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """How different the texts are; 0 where they are the same."""
        texts = [(unpack(a).greedy or "", unpack(b).greedy or "") for a, b in zip(ours, theirs, strict=True)]
        return np.array([1 - text_metrics.sentence_bleu(a, b) if a != b else 0.0 for a, b in texts])


def _score(metric: str, outputs: np.ndarray) -> float:
    if metric == "mode":
        return float(np.exp(outputs[:, 1, 1]).mean())
    loss, tokens = outputs[:, 0].sum(0, dtype=np.float64)
    if metric == "token_accuracy":
        return float(outputs[:, 1, 0].sum() / max(tokens, 1.0))
    perplexity = text_metrics.perplexity(loss, tokens)
    return perplexity if metric == "perplexity" else 1.0 / perplexity
