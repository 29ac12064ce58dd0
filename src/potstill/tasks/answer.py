"""Extractive question answering: where in a context the answer to a question begins and ends (SQuAD v1.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.examples import Examples
from potstill.data.row import Label, Span
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens
from potstill.errors import InputError
from potstill.tasks.metrics.labels import Score, answer_score, softmax
from potstill.tasks.task import Asked, Rows, Task, clean
from potstill.tasks.truncation import encode_texts, truncated_on_the_right

NBEST = 20
SHORTEST = 24  # tokens of a window
LONGEST_ANSWER = 30  # tokens, as in the evaluation of BERT
START, END, LOGIT, EXACT, F1 = range(5)  # of a candidate answer: characters of the context, score, quality
EXAMPLE = '{"question": "when did it begin ?", "context": "It began in May ."}'


@dataclass(frozen=True)
class QuestionAnswering(Task):
    """A long context is read in windows that overlap by a third; each gives two predictions over its tokens.

    `targets` are (n, golds, 2) characters at which gold answers begin and end; the first one is learned. `outputs` are
    (n, NBEST, 5), best first: begin, end, logit, and exact match and F1 against the golds (NaN without them). -1 fills.
    The question's tokens are impossible classes; the first token means that the answer is not in this window.
    """

    labels: tuple[str, ...] = ("start", "end")

    name = "answer"
    outcome = "span"
    labels_are_classes = False
    how_to_ask = f"a question as JSON, such as {EXAMPLE}"
    row_metrics = ("exact",)
    metrics = ("f1", "exact", f"f1_best_of_{NBEST}")
    target_width = 0  # differs from row to row

    @classmethod
    def row(cls, asked: Asked) -> tuple[str, str | None]:
        """{"question", "context"} as an object or as JSON, or a tuple of both."""
        if isinstance(asked, str):
            asked = json.loads(asked)
        question, context = (asked["question"], asked["context"]) if isinstance(asked, Mapping) else asked
        return clean(question), clean(context)

    @classmethod
    def without_labels(cls, choices: int, where: str) -> tuple[Task, str]:
        return cls(("start", "end")), "answers are extracted from the context"

    def encode(self, label: Label, where: str) -> list[float]:
        spans = [span for span in label if isinstance(span, Span)]
        return [float(place) for span in spans for place in (span.start, span.start + len(span.text))]

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """Windows of `length` tokens with the question in each; a question keeps a quarter of the length at most."""
        if length < SHORTEST:
            raise InputError(f"length = {length} has no room for question and context; write at least {SHORTEST}")
        questions = _first_tokens(tokenizer, [question for question, _ in texts], length // 4 - 3)
        contexts = [str(context) for _, context in texts]
        windows = {"truncation": "only_second", "stride": length // 3, "return_overflowing_tokens": True}
        with truncated_on_the_right(tokenizer):
            encoded = encode_texts(tokenizer, questions, contexts, length, return_offsets_mapping=True, **windows)
        rows = encoded["overflow_to_sample_mapping"]
        sequences = zip(encoded.encodings, rows, strict=True)
        characters = [_context_characters(encoding, contexts[row]) for encoding, row in sequences]
        counts = np.bincount(rows, minlength=len(texts)).tolist()
        truncated = sum(ours != theirs for ours, (theirs, _) in zip(questions, texts, strict=True))
        return Encoded(encoded["input_ids"], encoded["token_type_ids"], truncated, counts, characters=characters)

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return 2 * tokens.counts(rows)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Every possible token is a place with two outputs; predictions are start, end, start, end …"""
        windows = _windows(tokens, rows)
        possible = np.zeros((len(windows), max(map(len, windows))), bool)
        for window, characters in zip(possible, windows, strict=True):
            window[: len(characters)] = characters[:, 0] >= 0
        possible[:, 0] = True
        sequences, positions = np.nonzero(possible)
        numbers = np.full(possible.shape, -1, np.int64)
        numbers[sequences, positions] = np.arange(len(sequences))
        layout = np.stack([np.where(numbers < 0, -1, 2 * numbers + output) for output in (0, 1)], 1)
        return np.stack([sequences, positions], 1), layout.reshape(-1, possible.shape[1])

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """The tokens that hold the first and last character of the answer; 0 in windows that do not hold both."""
        targets = np.zeros((int(tokens.counts(rows).sum()), 2), np.float32)
        windows = iter(enumerate(_windows(tokens, rows)))
        for row, count in zip(rows, tokens.counts(rows), strict=True):
            mine = [next(windows) for _ in range(count)]
            if (gold := examples.gold(row)) is not None:
                first, end = _covered(gold[:2], np.concatenate([characters for _, characters in mine]))
                for place, characters in mine:
                    begins = np.flatnonzero((characters[:, 0] <= first) & (first < characters[:, 1]))
                    ends = np.flatnonzero((characters[:, 0] < end) & (end <= characters[:, 1]))
                    if len(begins) and len(ends):
                        targets[place] = begins[0], ends[-1]
        return targets.reshape(-1)

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """The best answers of all windows of each row."""
        windows = iter(zip(logits.reshape(-1, 2, logits.shape[-1]), _windows(tokens, rows), strict=True))
        outputs = []
        for row, count in zip(rows, tokens.counts(rows), strict=True):
            every = np.concatenate([_best(*next(windows)) for _ in range(count)])
            # windows overlap: an answer that is found in two counts once
            every = every[np.argsort(-every[:, LOGIT], kind="stable")]
            _, first = np.unique(every[:, :LOGIT], axis=0, return_index=True)
            outputs.append(self._scored(every[np.sort(first)][:NBEST], row, source))
        return outputs

    def _scored(self, best: np.ndarray, row: int, source: Rows) -> np.ndarray:
        output = np.full((NBEST, 5), -1.0, np.float32)
        output[: len(best), :EXACT], output[:, EXACT:] = best, np.nan
        if (gold := source.gold(row)) is not None:
            context = str(source.text(row)[1])
            golds, answers = _texts(gold, context), _texts(best[:, :LOGIT], context) or [""]
            output[:, EXACT:] = 0.0
            output[: len(answers), EXACT:] = [answer_score(answer, golds) for answer in answers]
        return output

    def golds(self, examples: Examples) -> np.ndarray:
        golds = super().golds(examples)
        return golds.reshape(len(golds), -1, 2)

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """(n, 2) begin and end of the best answer."""
        return np.asarray(outputs[:, 0, :LOGIT]).astype(int)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """(n, NBEST) of each candidate among the candidates."""
        logits = outputs[..., LOGIT] / self.temperature
        return softmax(np.where(outputs[..., START] < 0, -np.inf, logits).clip(min=-1e30))

    def confidence(self, outputs: np.ndarray) -> np.ndarray:
        return self.probabilities(outputs)[:, 0]

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"answer", "start", "end", "probability", "nbest": [the same of all candidates]}, in characters of the context."""
        spans = output[:, :LOGIT].astype(int).tolist()
        candidates = [
            {"answer": str(pair)[start:end], "start": start, "end": end, "probability": round(float(probability), 6)}
            for (start, end), probability in zip(spans, self.probabilities(output[None])[0], strict=True)
            if start >= 0
        ]
        nothing = {"answer": "", "start": 0, "end": 0, "probability": 0.0}
        return {**(candidates[0] if candidates else nothing), "nbest": candidates}

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return " / ".join(dict.fromkeys(_texts(gold, str(pair))))

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        scores = {"f1": outputs[:, 0, F1], "exact": outputs[:, 0, EXACT]}
        each = scores[metric] if metric in scores else np.nanmax(outputs[..., F1], axis=1)
        return lambda rows: float(each[rows].mean())

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """(n,) bool: an exact match with a gold answer."""
        return np.asarray(outputs[:, 0, EXACT] == 1)

    def share_right(self, outputs: np.ndarray) -> tuple[float, float, str]:
        return float(outputs[:, 0, F1].sum()), float(len(outputs)), "F1"


def _texts(spans: np.ndarray, context: str) -> list[str]:
    return [context[begin:end] for begin, end in spans.reshape(-1, 2).astype(int)]


def _first_tokens(tokenizer: Tokenizer, texts: list[str], tokens: int) -> list[str]:
    """Each text up to the end of the character that its last token belongs to."""
    with truncated_on_the_right(tokenizer):
        options = {"return_offsets_mapping": True, "add_special_tokens": False}
        encodings = encode_texts(tokenizer, texts, None, tokens, **options).encodings
    pairs = zip(texts, encodings, strict=True)
    return [text[: encoding.offsets[-1][1]] if encoding.overflowing else text for text, encoding in pairs]


def _context_characters(encoding: Any, context: str) -> np.ndarray:
    """(tokens, 2) where each token of the context begins and ends, without the space before it; -1 for other tokens."""
    inside = np.array([part == 1 for part in encoding.sequence_ids])
    begins, ends = np.array(encoding.offsets).T
    # for each character the next character that is not a space: some tokenizers count the space before a word to the word
    visible = np.flatnonzero([not character.isspace() for character in context])
    following = np.append(visible, len(context))[np.searchsorted(visible, np.arange(len(context) + 1))]
    begins = np.where(inside, following[np.where(inside, begins, 0)], -1)
    return np.where((inside & (begins < ends))[:, None], np.stack([begins, ends], 1), -1)


def _covered(gold: np.ndarray, characters: np.ndarray) -> tuple[float, float]:
    """Begin and end of an answer without what no token holds: space, or characters that the tokenizer drops."""
    begins, ends = characters[characters[:, 0] >= 0].T
    inside = (ends > gold[0]) & (begins < gold[1])
    if not inside.any():
        return -1.0, -1.0
    return max(float(begins[inside].min()), float(gold[0])), min(float(ends[inside].max()), float(gold[1]))


def _windows(tokens: Tokens, rows: np.ndarray) -> list[np.ndarray]:
    """(tokens, 2) characters of each window of these rows."""
    assert tokens.characters is not None
    sequences = tokens.sequences(rows)
    return [np.asarray(tokens.characters[tokens.offsets[i] : tokens.offsets[i + 1]]) for i in sequences]


def _best(logits: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """(candidates, 3) begin, end and logit of the best answers in a window, from its (2, tokens) logits."""
    size = len(characters)
    possible = np.flatnonzero(characters[:, 0] >= 0)
    firsts, lasts = (possible[np.argsort(-side[:size][possible], kind="stable")[:NBEST]] for side in logits)
    first, last = (grid.ravel() for grid in np.meshgrid(firsts, lasts, indexing="ij"))
    fits = (first <= last) & (last < first + LONGEST_ANSWER)
    first, last = first[fits], last[fits]
    score = logits[0, first] + logits[1, last]
    best = np.argsort(-score, kind="stable")[:NBEST]
    return np.stack([characters[first[best], 0], characters[last[best], 1], score[best]], 1).astype(np.float32)
