"""Words masked, replaced by others of the same tag, and n-grams kept: the rules of Tang et al. (2019), many texts at once.

What is drawn for a word follows from a number of the copy and the word's place alone, by SplitMix64 with a counter; so
it does not matter in which order, in what company or in which process a copy is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from potstill.data.augment.tagging import TaggedTexts
from potstill.data.tokens import MASK, ranges
from potstill.system.randomness import SPLITMIX_STEP, splitmix64, uniform

RULE, WORD, WHETHER, LENGTH, START, KINDS = range(6)  # what is drawn, each from numbers of its own


class Rules(NamedTuple):
    p_mask: float
    p_pos: float
    p_ng: float
    longest: int
    ngram: Literal["keep", "mask"]


def draw(seeds: np.ndarray, kind: int, places: np.ndarray | int = 0) -> np.ndarray:
    """(n,) in [0, 1), from (n,) uint64 and a place in the text each."""
    counters = np.atleast_1d(places).astype(np.uint64) * np.uint64(KINDS) + np.uint64(kind + 1)
    return uniform(splitmix64(seeds + counters * SPLITMIX_STEP))


def seeds_of(draw: int, keys: np.ndarray, copies: np.ndarray, side: int) -> np.ndarray:
    """(n,) uint64, one for each copy of a text: from the draw, the example's key, the copy's number and the side of the pair."""
    begun = splitmix64(keys.astype(np.uint64) + splitmix64(np.array([draw], np.uint64) + SPLITMIX_STEP))
    return splitmix64(begun + (2 * copies + side + 1).astype(np.uint64) * SPLITMIX_STEP)


class Corpus:
    """Texts, with the words of each tag and their counts to draw from."""

    def __init__(self, texts: TaggedTexts) -> None:
        self.texts = texts
        self.mask = 2 * len(texts.words)
        spoken = [piece for word in (*texts.words, MASK) for piece in (word, f" {word}")]
        self.spoken = np.array(spoken, object)
        # by the alphabet, since numbers hang on the order of the examples
        alphabet = np.array(sorted(range(len(texts.words)), key=texts.words.__getitem__), np.int64)
        rank = np.argsort(alphabet)
        pairs = texts.tags.astype(np.int64) * len(texts.words) + rank[texts.pieces >> 1]
        found, counts = np.unique(pairs, return_counts=True)
        tags, ranks = np.divmod(found, max(len(texts.words), 1))
        self.words = alphabet[ranks]
        self.ends = np.cumsum(counts)  # in the row of all words of the corpus, sorted by tag and word
        self.sizes = np.bincount(tags, weights=counts, minlength=len(texts.tag_names)).astype(np.int64)
        self.begins = np.cumsum(self.sizes) - self.sizes

    def drawn(self, tags: np.ndarray, where: np.ndarray) -> np.ndarray:
        """(n,) words of these tags, each as often as it occurs with the tag; `where` is uniform in [0, 1)."""
        places = self.begins[tags] + (where * self.sizes[tags]).astype(np.int64)
        return np.asarray(self.words[np.searchsorted(self.ends, places, side="right")])

    def changed(self, numbers: np.ndarray, seeds: np.ndarray, rules: Rules) -> ChangedTexts:
        """(n,) texts by number, changed as their (n,) seeds say."""
        sizes = np.asarray(self.texts.offsets[numbers + 1] - self.texts.offsets[numbers])
        flat = ranges(self.texts.offsets[numbers], self.texts.offsets[numbers + 1])
        before = self.texts.pieces[flat].astype(np.int64)
        owners = np.repeat(np.arange(len(numbers)), sizes)
        places = np.arange(len(flat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        x = draw(seeds[owners], RULE, places)
        masked = x < rules.p_mask
        other = np.flatnonzero(~masked & (x < rules.p_mask + rules.p_pos))
        pieces = np.where(masked, self.mask + (before & 1), before)
        words = self.drawn(self.texts.tags[flat[other]], draw(seeds[owners[other]], WORD, places[other]))
        pieces[other] = 2 * words + (before[other] & 1)

        cut = draw(seeds, WHETHER) < rules.p_ng
        length = np.minimum(1 + (draw(seeds, LENGTH) * rules.longest).astype(np.int64), sizes)
        first = (draw(seeds, START) * (sizes - length + 1)).astype(np.int64)
        inside = (first[owners] <= places) & (places < (first + length)[owners])
        if rules.ngram == "mask":
            covered = cut[owners] & inside
            pieces[covered] = self.mask + (before[covered] & 1)
            kept = np.ones(len(flat), np.bool_)
        else:
            kept = inside | ~cut[owners]
        altered = np.bincount(owners, weights=(pieces != before) | ~kept, minlength=len(numbers)) > 0
        return ChangedTexts(pieces[kept], np.bincount(owners[kept], minlength=len(numbers)), altered, self.spoken)


@dataclass(frozen=True)
class ChangedTexts:
    pieces: np.ndarray  # flat
    sizes: np.ndarray  # (n,) words of each text
    altered: np.ndarray  # (n,) bool: another text than before
    spoken: np.ndarray  # what each piece says

    def texts(self, which: np.ndarray) -> list[str]:
        """In words."""
        ends = np.cumsum(self.sizes)
        begins, sizes = (ends - self.sizes)[which], self.sizes[which]
        pieces = self.pieces[ranges(begins, begins + sizes)]
        ends = np.cumsum(sizes)
        pieces[(ends - sizes)[sizes > 0]] &= ~1  # no space before the first
        said = self.spoken[pieces].tolist()
        return ["".join(said[end - size : end]) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
