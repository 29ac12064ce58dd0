"""Extractive answers: where in a context the answer to a question begins and ends (SQuAD v1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.examples import Examples
from potstill.data.row import Form, Label, Span
from potstill.data.tokens import Encoded, Tokens
from potstill.errors import InputError
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score, softmax
from potstill.tasks.task import Rows, Task, TaskName
from potstill.tasks.truncation import cut_at_the_end, encoded

NBEST = 20
SHORTEST = 24  # tokens of a window
LONGEST_ANSWER = 30  # tokens, as in the evaluation of BERT
START, END, LOGIT, EXACT, F1 = range(5)  # of a candidate answer: characters of the context, score, quality


@dataclass(frozen=True)
class Answering(Task):
    """A long context is read in windows that overlap by a third; each gives two predictions over its tokens.

    `targets` are (n, golds, 2) characters at which gold answers begin and end, the first is learned; `answers` are
    (n, NBEST, 5), best first: begin, end, logit, and exact match and F1 against the golds (NaN without them). -1 fills.
    The question's tokens are impossible classes; the first token stands for "the answer is not in this window".
    """

    form: ClassVar[Form] = "answers"
    head: ClassVar[str] = "QuestionAnswering"
    chance: ClassVar[str] = "F1"

    @property
    def name(self) -> TaskName:
        return "answer"

    @property
    def names_outputs(self) -> bool:
        return False

    @property
    def target_width(self) -> int:
        return 0

    def encode(self, label: Label, where: str) -> list[float]:
        spans = [one for one in label if isinstance(one, Span)]
        return [float(place) for span in spans for place in (span.start, span.start + len(span.text))]

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """Windows of `length` tokens with the question in each; a question keeps a quarter of the length at most."""
        if length < SHORTEST:
            raise InputError(
                f"length = {length} leaves no room for a question and its context; write at least {SHORTEST}"
            )
        questions = _cut(tokenizer, [question for question, _ in texts], length // 4 - 3)
        contexts = [str(context) for _, context in texts]
        windows = {"truncation": "only_second", "stride": length // 3, "return_overflowing_tokens": True}
        with cut_at_the_end(tokenizer):
            made = encoded(tokenizer, questions, contexts, length, return_offsets_mapping=True, **windows)
        rows = made["overflow_to_sample_mapping"]
        characters = [_letters(one, contexts[row]) for one, row in zip(made.encodings, rows, strict=True)]
        counts = np.bincount(rows, minlength=len(texts)).tolist()
        shortened = sum(ours != theirs for ours, (theirs, _) in zip(questions, texts, strict=True))
        return Encoded(made["input_ids"], made["token_type_ids"], shortened, counts, characters=characters)

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        return 2 * tokens.counts(rows)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Every possible token is a place with two outputs; predictions are start, end, start, end …"""
        possible = np.stack([characters[:, 0] >= 0 for characters in _padded(tokens, rows)])
        possible[:, 0] = True
        sequences, positions = np.nonzero(possible)
        numbers = np.full(possible.shape, -1, np.int64)
        numbers[sequences, positions] = np.arange(len(sequences))
        layout = np.stack([np.where(numbers < 0, -1, 2 * numbers + one) for one in (0, 1)], 1)
        return np.stack([sequences, positions], 1), layout.reshape(-1, possible.shape[1])

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """The tokens that hold the answer's first and last letter; 0 in windows that do not hold both."""
        found = np.zeros((int(tokens.counts(rows).sum()), 2), np.float32)
        windows = iter(enumerate(_windows(tokens, rows)))
        for row, count in zip(rows, tokens.counts(rows), strict=True):
            mine = [next(windows) for _ in range(count)]
            if (gold := examples.gold(row)) is not None:
                first, end = _covered(gold[:2], np.concatenate([characters for _, characters in mine]))
                for place, characters in mine:
                    begins = np.flatnonzero((characters[:, 0] <= first) & (first < characters[:, 1]))
                    ends = np.flatnonzero((characters[:, 0] < end) & (end <= characters[:, 1]))
                    if len(begins) and len(ends):
                        found[place] = begins[0], ends[-1]
        return found.reshape(-1)

    def read(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """The best answers of all windows of each row."""
        windows = iter(zip(logits.reshape(-1, 2, logits.shape[-1]), _windows(tokens, rows), strict=True))
        found = []
        for row, count in zip(rows, tokens.counts(rows), strict=True):
            every = np.concatenate([_best(*next(windows)) for _ in range(count)])
            # windows overlap: the same answer may be found in two, and counts once
            every = every[np.argsort(-every[:, LOGIT], kind="stable")]
            _, first = np.unique(every[:, :LOGIT], axis=0, return_index=True)
            found.append(self._scored(every[np.sort(first)][:NBEST], row, source))
        return found

    def _scored(self, best: np.ndarray, row: int, source: Rows) -> np.ndarray:
        answer = np.full((NBEST, 5), -1.0, np.float32)
        answer[: len(best), :EXACT], answer[:, EXACT:] = best, np.nan
        if (gold := source.gold(row)) is not None:
            context = str(source.text(row)[1])
            golds = [context[int(begin) : int(end)] for begin, end in gold.reshape(-1, 2)]
            said = [context[int(begin) : int(end)] for begin, end in best[:, :LOGIT]] or [""]
            told = metrics.answer_scores([{"prediction": one, "answers": golds} for one in said])["per_question"]
            answer[:, EXACT:] = 0.0
            answer[: len(told), EXACT:] = [[one["exact"], one["f1"]] for one in told]
        return answer

    def golds(self, examples: Examples) -> np.ndarray:
        rows = [examples.gold(row) for row in examples.index]
        found = np.full((len(rows), max((len(row) for row in rows if row is not None), default=2)), -1, np.float32)
        for place, row in enumerate(rows):
            found[place, : len(row) if row is not None else None] = np.nan if row is None else row
        return found.reshape(len(rows), -1, 2)

    def decode(self, answers: np.ndarray) -> np.ndarray:
        """(n, 2) begin and end of the best answer."""
        return np.asarray(answers[:, 0, :LOGIT]).astype(int)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(n, NBEST): of each candidate among the candidates."""
        return softmax(np.where(logits[..., START] < 0, -np.inf, logits[..., LOGIT]).clip(min=-1e30))

    def told(self, answer: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"answer", "start", "end", "probability", "nbest": [the same of all candidates]}, in characters of the context."""
        found = [
            {
                "answer": str(pair)[int(one[START]) : int(one[END])],
                "start": int(one[START]),
                "end": int(one[END]),
                "probability": round(float(probability), 6),
            }
            for one, probability in zip(answer, self.probabilities(answer[None])[0], strict=True)
            if one[START] >= 0
        ]
        nothing = {"answer": "", "start": 0, "end": 0, "probability": 0.0}
        return {**(found[0] if found else nothing), "nbest": found}

    def in_words(self, answer: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        said = self.told(answer, text, pair)
        return said["answer"], said["probability"]

    def gold_in_words(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        golds = [str(pair)[int(begin) : int(end)] for begin, end in gold.reshape(-1, 2)]
        return " / ".join(dict.fromkeys(golds))

    @property
    def metrics(self) -> list[str]:
        return ["f1", "exact", f"f1_best_of_{NBEST}"]

    def score(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
        every = np.arange(len(answers))
        return {metric: self.scorer(metric, targets, answers)(every) for metric in self.metrics}

    def scorer(self, metric: str, targets: np.ndarray, answers: np.ndarray) -> Score:
        each = {"f1": answers[:, 0, F1], "exact": answers[:, 0, EXACT]}.get(metric, np.nanmax(answers[..., F1], axis=1))
        return lambda rows: float(each[rows].mean())

    def is_share(self, metric: str) -> bool:
        return metric == "exact"

    def right(self, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(n,) bool: an exact match with a gold answer."""
        return np.asarray(answers[:, 0, EXACT] == 1)

    def calibration_error(self, targets: np.ndarray, answers: np.ndarray) -> float | None:
        return metrics.calibration_error(self.probabilities(answers)[:, 0], self.right(targets, answers))

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float:
        """Share of questions with the very same answer."""
        return float((self.decode(ours) == self.decode(theirs)).all(1).mean())

    def dissent(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        same = (self.decode(ours) == self.decode(theirs)).all(1)
        return np.where(same, -1.0, self.probabilities(theirs)[:, 0])

    def details(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
        return {}


def _cut(tokenizer: PreTrainedTokenizerBase, texts: list[str], tokens: int) -> list[str]:
    """Each text's first tokens, to the end of the letter that the last one is of."""
    with cut_at_the_end(tokenizer):
        made = encoded(tokenizer, texts, None, tokens, return_offsets_mapping=True, add_special_tokens=False).encodings
    return [text[: one.offsets[-1][1]] if one.overflowing else text for text, one in zip(texts, made, strict=True)]


def _letters(encoding: Any, context: str) -> np.ndarray:
    """(tokens, 2) where each token of the context begins and ends, without space before it; -1 for all others."""
    inside = np.array([part == 1 for part in encoding.sequence_ids])
    begins, ends = np.array(encoding.offsets).T
    # for each letter the next one that is no space; some tokenizers count the space before a word to the word
    filled = np.flatnonzero([not letter.isspace() for letter in context])
    following = np.append(filled, len(context))[np.searchsorted(filled, np.arange(len(context) + 1))]
    begins = np.where(inside, following[np.where(inside, begins, 0)], -1)
    return np.where((inside & (begins < ends))[:, None], np.stack([begins, ends], 1), -1)


def _covered(gold: np.ndarray, characters: np.ndarray) -> tuple[float, float]:
    """First letter and end of an answer without what no token holds: space, or signs that the tokenizer drops."""
    begins, ends = characters[characters[:, 0] >= 0].T
    met = (ends > gold[0]) & (begins < gold[1])
    if not met.any():
        return -1.0, -1.0
    return max(float(begins[met].min()), float(gold[0])), min(float(ends[met].max()), float(gold[1]))


def _windows(tokens: Tokens, rows: np.ndarray) -> list[np.ndarray]:
    """(tokens, 2) characters of each window of these rows."""
    assert tokens.characters is not None
    sequences = tokens.sequences(rows)
    return [np.asarray(tokens.characters[tokens.offsets[one] : tokens.offsets[one + 1]]) for one in sequences]


def _padded(tokens: Tokens, rows: np.ndarray) -> list[np.ndarray]:
    windows = _windows(tokens, rows)
    longest = max(map(len, windows))
    return [np.pad(one, ((0, longest - len(one)), (0, 0)), constant_values=-1) for one in windows]


def _best(logits: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """(candidates, 3) begin, end and logit of a window's best answers, from its (2, tokens) logits."""
    size = len(characters)
    possible = np.flatnonzero(characters[:, 0] >= 0)
    firsts, lasts = (possible[np.argsort(-side[:size][possible], kind="stable")[:NBEST]] for side in logits)
    first, last = (grid.ravel() for grid in np.meshgrid(firsts, lasts, indexing="ij"))
    fits = (first <= last) & (last < first + LONGEST_ANSWER)
    first, last = first[fits], last[fits]
    score = logits[0, first] + logits[1, last]
    best = np.argsort(-score, kind="stable")[:NBEST]
    found = (characters[first[best], 0], characters[last[best], 1], score[best])
    return np.stack(found, 1).astype(np.float32)
