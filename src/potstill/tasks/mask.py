"""Masked language modelling: predict tokens that were masked or replaced (Devlin et al., 2019, arXiv:1810.04805)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from potstill.data.examples import Examples
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import MASK, Encoded, Tokens, Vocabulary, ranges, with_mask_token
from potstill.errors import InputError
from potstill.tasks.drawn import RIGHT, DrawnPredictions, scored
from potstill.tasks.metrics.labels import softmax
from potstill.tasks.task import Rows
from potstill.tasks.truncation import encode_texts, truncated_on_the_right

SHARE = 0.15  # of the tokens of a row are predicted, special tokens aside
MASKED, REPLACED = 0.8, 0.1  # of these, by the mask token or by a random one; the others stay
DRAWS = 3  # numbers for each token: is it predicted, what is read in its place, and which random token
NBEST = 5  # tokens that `predict` gives for a mask


class Chosen(NamedTuple):
    """Some tokens of some rows, in their order."""

    numbers: np.ndarray  # (chosen,) place among all tokens of these rows
    positions: np.ndarray  # (chosen,) the same in the flat arrays of `Tokens`
    owners: np.ndarray  # (chosen,) place of the row among the rows

    def take(self, kept: np.ndarray) -> Chosen:
        return Chosen(self.numbers[kept], self.positions[kept], self.owners[kept])


@dataclass(frozen=True)
class MaskedLanguageModelling(DrawnPredictions):
    """What is predicted is drawn from the key of the row, in training in every epoch again, on dev and test always the same.

    The name of an output is a hash of the predicted token. A long text is read in windows. Rows that are only asked about
    (`predict`) have predictions at their mask tokens: (masks, 2 · NBEST) ids and probabilities.
    """

    labels: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = field(default=None, compare=False, repr=False)  # `describe` writes its tokens
    whole_words: bool = False  # all tokens of a word are predicted, or none

    name = "mask"
    how_to_ask = f"a text with {MASK} where a token is missing"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "likelihood", "perplexity")

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        return replace(self, tokenizer=tokenizer)

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """A text in consecutive windows, each token once; a pair as one sequence, truncated."""
        if tokenizer.mask_token is None:
            problem = f"the tokenizer of {tokenizer.name_or_path or 'the model'} has no mask token"
            raise InputError(f"{problem}, which task 'mask' needs; start from a model that has one, such as BERT")
        if any(pair is not None for _, pair in texts):
            return super().tokenize(texts, tokenizer, length)
        with truncated_on_the_right(tokenizer):
            firsts = with_mask_token([text for text, _ in texts], tokenizer)
            encoded = encode_texts(tokenizer, firsts, None, length, return_overflowing_tokens=True)
        counts = np.bincount(encoded["overflow_to_sample_mapping"], minlength=len(texts)).tolist()
        return Encoded(encoded["input_ids"], encoded["token_type_ids"], 0, counts)

    # which tokens are predicted

    def candidates(self, tokens: Tokens, rows: np.ndarray) -> Chosen:
        """Return all tokens that could be predicted."""
        vocabulary, sequences = _vocabulary(tokens), tokens.sequences(rows)
        positions = ranges(tokens.offsets[sequences], tokens.offsets[sequences + 1])
        owners = np.repeat(np.repeat(np.arange(len(rows)), tokens.counts(rows)), tokens.sizes(sequences))
        ids = tokens.ids[positions]
        possible = ids == vocabulary.mask if tokens.keys is None else vocabulary.is_ordinary[ids]
        return Chosen(np.arange(len(positions)), positions, owners).take(np.flatnonzero(possible))

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """A share of each row's tokens, at least one. The number does not depend on which ones are drawn, but for whole words."""
        if self.whole_words and tokens.keys is not None:
            return np.bincount(self.chosen(tokens, rows)[0].owners, minlength=len(rows))
        counts = np.bincount(self.candidates(tokens, rows).owners, minlength=len(rows))
        return counts if tokens.keys is None else _predicted(counts)

    def chosen(self, tokens: Tokens, rows: np.ndarray) -> tuple[Chosen, np.ndarray]:
        """Return the tokens that are predicted, and the ids that the model reads in their place."""
        every = self.candidates(tokens, rows)
        if tokens.keys is None:
            return every, np.asarray(tokens.ids[every.positions])
        counts = np.bincount(every.owners, minlength=len(rows))
        longest = int(counts.max(initial=0))
        places = np.arange(len(every.owners)) - np.repeat(np.cumsum(counts) - counts, counts)  # of each in its row
        drawn = tokens.drawn(rows, DRAWS * longest).reshape(len(rows), longest, DRAWS)[every.owners, places]
        kept = _lowest(drawn[:, 0], every.owners)
        if self.whole_words:
            begins = _word_begins(every, tokens)
            words = _lowest(drawn[begins, 0], every.owners[begins])  # the number of a word is that of its first token
            kept = np.flatnonzero(np.isin(np.cumsum(begins) - 1, words))
        chosen, (_, how, which) = every.take(kept), drawn[kept].T
        vocabulary = _vocabulary(tokens)
        random = vocabulary.ordinary[(which * len(vocabulary.ordinary)).astype(np.int64)]
        own = tokens.ids[chosen.positions]
        return chosen, np.where(how < MASKED, vocabulary.mask, np.where(how < MASKED + REPLACED, random, own))

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        chosen, _ = self.chosen(tokens, rows)
        return _at(tokens, rows, chosen), None

    def inputs(
        self, arrays: dict[str, np.ndarray], real: np.ndarray, tokens: Tokens, rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        chosen, read = self.chosen(tokens, rows)
        ids = arrays["input_ids"].copy()
        ids[tuple(_at(tokens, rows, chosen).T)] = read
        return super().inputs({**arrays, "input_ids": ids}, real, tokens, rows)

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(predictions,) ids."""
        return np.asarray(tokens.ids[self.chosen(tokens, rows)[0].positions], np.float32)

    # from logits to outputs

    def read_logits(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        chosen, _ = self.chosen(tokens, rows)
        ends = np.cumsum(np.bincount(chosen.owners, minlength=len(rows)))[:-1]
        if tokens.keys is None:
            best = np.argsort(-logits, axis=-1, kind="stable")[:, :NBEST]
            outputs = np.concatenate([best, np.take_along_axis(softmax(logits), best, 1)], 1)
        else:
            names = _vocabulary(tokens).hashes
            gold = np.asarray(tokens.ids[chosen.positions], np.int64)
            # a model may have more outputs than the tokenizer has tokens
            outputs = scored(
                logits, gold, lambda best: np.where(best < len(names), names[np.minimum(best, len(names) - 1)], 0.0)
            )
        return np.split(outputs.astype(np.float32), ends)

    # for people

    def describe(self, output: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """{"text", "masks": [{"token", "probability", "nbest": [the same of the best tokens]}]}"""
        assert self.tokenizer is not None
        masks = []
        filled = with_mask_token([text], self.tokenizer)[0]
        for ids, probabilities in output.reshape(len(output), 2, output.shape[1] // 2):
            tokens = [str(self.tokenizer.decode([int(number)])).strip() for number in ids]
            nbest = [
                {"token": token, "probability": round(float(probability), 6)}
                for token, probability in zip(tokens, probabilities, strict=True)
            ]
            masks.append({**nbest[0], "nbest": nbest})
            filled = _fill(filled, str(self.tokenizer.mask_token), tokens[0])
        return {"text": filled, "masks": masks}

    def summary(self, output: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        right = output[output[:, RIGHT] >= 0, RIGHT]
        return f"{int(right.sum())} of {len(right)} masked tokens right", None


def _fill(text: str, mask: str, token: str) -> str:
    """Write a token in place of the first mask; one that continues a word is joined to what precedes it."""
    before, _, behind = text.partition(mask)
    joined = token.startswith("##") and token != "##"
    return (before.rstrip() + token[2:] if joined else before + token) + behind


def _predicted(candidates: np.ndarray) -> np.ndarray:
    """How many tokens of a row are predicted, given how many could be."""
    return np.where(candidates > 0, np.maximum(1, np.rint(SHARE * candidates)), 0).astype(np.int64)


def _lowest(numbers: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """The places of the lowest numbers of each owner: as many as are predicted of so many."""
    counts = np.bincount(owners)
    ranks = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(np.lexsort((numbers, owners))[ranks < _predicted(counts)[owners]])


def _word_begins(chosen: Chosen, tokens: Tokens) -> np.ndarray:
    """(chosen,) bool: the first token of a word. A word does not reach over special tokens or the end of a row."""
    continues = _vocabulary(tokens).continues
    if continues is None:
        raise InputError("whole_words: the tokenizer does not show where words begin; omit whole_words")
    apart = np.diff(chosen.numbers, prepend=-2) != 1
    return np.asarray(apart | ~continues[tokens.ids[chosen.positions]])


def _at(tokens: Tokens, rows: np.ndarray, chosen: Chosen) -> np.ndarray:
    """(chosen, 2) sequence among those of the rows, and position in it."""
    sizes = tokens.sizes(tokens.sequences(rows))
    ends = np.cumsum(sizes)
    sequences = np.searchsorted(ends, chosen.numbers, side="right")
    return np.stack([sequences, chosen.numbers - (ends - sizes)[sequences]], 1)


def _vocabulary(tokens: Tokens) -> Vocabulary:
    assert tokens.vocabulary is not None
    return tokens.vocabulary
