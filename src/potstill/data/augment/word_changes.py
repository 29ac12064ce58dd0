"""Masks words, replaces them by words with the same tag and keeps n-grams, for many texts at once (Tang et al., 2019).

The random numbers of a word depend only on the seed of its copy and its place in the text (SplitMix64 with a counter).
So copies are the same in any order, batch and process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from potstill.data.augment.tagging import TaggedTexts
from potstill.data.tokens import MASK, ranges
from potstill.system.randomness import SPLITMIX_STEP, splitmix64, uniform

RULE, WORD, NGRAM, LENGTH, START, KINDS = range(6)  # kinds of random numbers, each with its own counter


class Rules(NamedTuple):
    p_mask: float
    p_pos: float
    p_ng: float
    longest: int
    ngram: Literal["keep", "mask"]


def draw(seeds: np.ndarray, kind: int, places: np.ndarray | int = 0) -> np.ndarray:
    """Return (n,) numbers in [0, 1) from (n,) uint64 seeds and the place of each in its text."""
    counters = np.atleast_1d(places).astype(np.uint64) * np.uint64(KINDS) + np.uint64(kind + 1)
    return uniform(splitmix64(seeds + counters * SPLITMIX_STEP))


def seeds_of(draw: int, keys: np.ndarray, copies: np.ndarray, side: int) -> np.ndarray:
    """Return (n,) uint64, one per copy of a text: from the draw, the example's key, the copy's number and the side of the pair."""
    examples = splitmix64(keys.astype(np.uint64) + splitmix64(np.array([draw], np.uint64) + SPLITMIX_STEP))
    return splitmix64(examples + (2 * copies + side + 1).astype(np.uint64) * SPLITMIX_STEP)


class Corpus:
    """Texts, with the words of each tag and their counts, from which replacements are drawn."""

    def __init__(self, texts: TaggedTexts) -> None:
        self.texts = texts
        self.mask = 2 * len(texts.vocabulary)
        strings = [string for word in (*texts.vocabulary, MASK) for string in (word, f" {word}")]
        self.strings = np.array(strings, object)
        # in alphabetical order, because the index of a word depends on the order of the examples
        alphabet = np.array(sorted(range(len(texts.vocabulary)), key=texts.vocabulary.__getitem__), np.int64)
        rank = np.argsort(alphabet)
        pairs = texts.tags.astype(np.int64) * len(texts.vocabulary) + rank[texts.words >> 1]
        unique, counts = np.unique(pairs, return_counts=True)
        tags, ranks = np.divmod(unique, max(len(texts.vocabulary), 1))
        self.words = alphabet[ranks]
        self.ends = np.cumsum(counts)  # in a list of all words of the corpus, sorted by tag and word
        self.sizes = np.bincount(tags, weights=counts, minlength=len(texts.tag_names)).astype(np.int64)
        self.begins = np.cumsum(self.sizes) - self.sizes

    def draw_words(self, tags: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return (n,) words with these tags, each as often as it occurs with the tag. `numbers` are uniform in [0, 1)."""
        places = self.begins[tags] + (numbers * self.sizes[tags]).astype(np.int64)
        return np.asarray(self.words[np.searchsorted(self.ends, places, side="right")])

    def changed(self, numbers: np.ndarray, seeds: np.ndarray, rules: Rules) -> ChangedTexts:
        """Return (n,) texts by number, changed by (n,) seeds."""
        sizes = np.asarray(self.texts.offsets[numbers + 1] - self.texts.offsets[numbers])
        flat = ranges(self.texts.offsets[numbers], self.texts.offsets[numbers + 1])
        before = self.texts.words[flat].astype(np.int64)
        owners = np.repeat(np.arange(len(numbers)), sizes)
        places = np.arange(len(flat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        x = draw(seeds[owners], RULE, places)
        masked = x < rules.p_mask
        other = np.flatnonzero(~masked & (x < rules.p_mask + rules.p_pos))
        words = np.where(masked, self.mask + (before & 1), before)
        replacements = self.draw_words(self.texts.tags[flat[other]], draw(seeds[owners[other]], WORD, places[other]))
        words[other] = 2 * replacements + (before[other] & 1)

        cut = draw(seeds, NGRAM) < rules.p_ng
        length = np.minimum(1 + (draw(seeds, LENGTH) * rules.longest).astype(np.int64), sizes)
        first = (draw(seeds, START) * (sizes - length + 1)).astype(np.int64)
        inside = (first[owners] <= places) & (places < (first + length)[owners])
        if rules.ngram == "mask":
            covered = cut[owners] & inside
            words[covered] = self.mask + (before[covered] & 1)
            kept = np.ones(len(flat), np.bool_)
        else:
            kept = inside | ~cut[owners]
        altered = np.bincount(owners, weights=(words != before) | ~kept, minlength=len(numbers)) > 0
        return ChangedTexts(words[kept], np.bincount(owners[kept], minlength=len(numbers)), altered, self.strings)


@dataclass(frozen=True)
class ChangedTexts:
    words: np.ndarray  # flat, see `TaggedTexts`
    sizes: np.ndarray  # (n,) words of each text
    altered: np.ndarray  # (n,) bool: the text differs from the original
    strings: np.ndarray  # of the values of `words`

    def texts(self, which: np.ndarray) -> list[str]:
        """Return the texts with these numbers."""
        ends = np.cumsum(self.sizes)
        begins, sizes = (ends - self.sizes)[which], self.sizes[which]
        words = self.words[ranges(begins, begins + sizes)]
        ends = np.cumsum(sizes)
        words[(ends - sizes)[sizes > 0]] &= ~1  # no space before the first word
        strings = self.strings[words].tolist()
        return ["".join(strings[end - size : end]) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
