"""Which rows are nearly the same as others: equal but for case and punctuation, or with most of their words in a row.

Two texts are near-duplicates if one of these holds:

- They are equal after normalisation, see `words_of`.
- Both have at least 8 words, and at least half of the different 3-word sequences of the shorter one occur in the other. So a
  text of 8 words may differ in one word, one of 14 in any two, and a long text may be a part of a longer one.
- The first has 4 to 7 words, and all of its 3-word sequences occur in the other.

Nothing is sampled: every shared sequence is counted. Of pairs, both texts must be near-duplicates of those of the same row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import Examples, key_of
from potstill.data.task import DataTask, Texts
from potstill.data.tokens import ranges

LENGTH = 3  # words of a sequence
LONG = 6  # different sequences: texts of 8 words or more
SHORTEST = 2  # texts of 4 words or more
SHARED = 0.5  # of the sequences of the shorter text
AT_ONCE = 2**22  # pairs of sequences that are counted together
WORD = re.compile(r"\w+")
# treebanks write "does n't" and "it 's"
SPLIT_OFF = re.compile(r"\s+(?=(?:n'|'(?:s|m|d|ll|re|ve)\b))")
APOSTROPHES = str.maketrans({"’": "'", "`": "'"})
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, for three places


class Matches(NamedTuple):
    """Which texts are near-duplicates of which rows."""

    texts: np.ndarray  # (matches,) positions among the texts that were asked about
    rows: np.ndarray  # (matches,) positions among the rows
    equal: np.ndarray  # (matches,) bool: they are equal after normalisation


class Sequences(NamedTuple):
    """The different 3-word sequences of some texts."""

    keys: np.ndarray  # (texts,) uint64, equal for texts that are equal after normalisation
    sizes: np.ndarray  # (texts,) sequences of each
    owners: np.ndarray  # (sequences,) the text of each, ascending
    hashes: np.ndarray  # (sequences,) uint64


def words_of(text: str) -> list[str]:
    """The words of a text without case and punctuation; "doesn't" is one word, also where it is written "does n't"."""
    return WORD.findall(SPLIT_OFF.sub("", text.casefold().translate(APOSTROPHES)).replace("'", ""))


def normal_key(words: Sequence[str], text: str) -> int:
    """A hash of the words without spaces; of the text itself if it has no word."""
    return xxhash.xxh3_64_intdigest(("".join(words) or "".join(text.split())).encode())


def sequences_of(texts: Sequence[str]) -> Sequences:
    split = [words_of(text) for text in texts]
    keys = [normal_key(words, text) for words, text in zip(split, texts, strict=True)]
    counts = np.array([len(words) for words in split], np.int64)
    hashes = (xxhash.xxh3_64_intdigest(word.encode()) for words in split for word in words)
    words = np.fromiter(hashes, np.uint64, int(counts.sum()))
    owners = np.repeat(np.arange(len(texts)), counts)
    places = np.flatnonzero(owners[: -LENGTH + 1] == owners[LENGTH - 1 :])  # where a sequence begins
    windows = sum(words[places + step] * FACTORS[step] for step in range(LENGTH))
    owners = owners[places]
    order = np.lexsort((windows, owners))
    owners, windows = owners[order], np.asarray(windows, np.uint64)[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (owners[1:] != owners[:-1]) | (windows[1:] != windows[:-1])
    owners, windows = owners[new], windows[new]
    return Sequences(np.array(keys, np.uint64), np.bincount(owners, minlength=len(texts)), owners, windows)


class Side:
    """The texts, or the second texts, of the rows with which others are compared."""

    def __init__(self, parts: Sequence[Sequences]) -> None:
        firsts = np.cumsum([0, *(len(part.keys) for part in parts)])
        self.rows = int(firsts[-1])
        self.sizes = np.concatenate([part.sizes for part in parts])
        self.keys = Postings(np.concatenate([part.keys for part in parts]), np.arange(self.rows))
        owners = np.concatenate([part.owners + first for part, first in zip(parts, firsts[:-1], strict=True)])
        self.sequences = Postings(np.concatenate([part.hashes for part in parts]), owners)

    def equal(self, texts: Sequences) -> np.ndarray:
        """Sorted codes, text · rows + row, of equal texts."""
        found, rows = self.keys.find(texts.keys)
        return np.unique(found * self.rows + rows)

    def near(self, texts: Sequences) -> np.ndarray:
        """Sorted codes of texts that share enough sequences with a row."""
        per_sequence = self.sequences.counts(texts.hashes)
        so_far = np.cumsum(np.bincount(texts.owners, per_sequence, len(texts.sizes)).astype(np.int64))
        groups = (so_far // AT_ONCE)[texts.owners]  # each counts about AT_ONCE pairs
        found = [np.empty(0, np.int64)]
        for begin, end in zip(*_runs(groups), strict=True):
            places, rows = self.sequences.find(texts.hashes[begin:end])
            codes, shared = np.unique(texts.owners[begin:end][places] * self.rows + rows, return_counts=True)
            ours, theirs = texts.sizes[codes // self.rows], self.sizes[codes % self.rows]
            shorter = np.minimum(ours, theirs)
            contained = (ours >= SHORTEST) & (ours < LONG) & (shared == ours)
            found.append(codes[contained | ((shorter >= LONG) & (shared >= SHARED * shorter))])
        return np.concatenate(found)


class Postings:
    """Which rows have which hash."""

    def __init__(self, hashes: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(hashes, kind="stable")
        self.rows = rows[order]
        self.hashes, firsts = np.unique(hashes[order], return_index=True)
        self.offsets = np.append(firsts, len(hashes))

    def _places(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not len(self.hashes):
            return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return places, self.hashes[places] == hashes

    def counts(self, hashes: np.ndarray) -> np.ndarray:
        """(hashes,) the number of rows with each."""
        places, there = self._places(hashes)
        return np.diff(self.offsets)[places] * there if len(self.hashes) else places

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the hashes, and the rows that have them."""
        places, there = self._places(hashes)
        found = places[there]
        begins, ends = self.offsets[found], self.offsets[found + 1]
        return np.repeat(np.flatnonzero(there), ends - begins), self.rows[ranges(begins, ends)]


class NearDuplicates:
    """Finds near-duplicates of some rows among texts. Memory: about 20 bytes per word of the rows."""

    def __init__(self, rows: Sequence[Examples], task: DataTask, pairs: bool) -> None:
        """`pairs`: the second texts count too; targets that are texts do not."""
        self.images, self.generates, self.pairs = task.images, task.generates, pairs
        parts = [self.sequences(list(part.texts())) for examples in rows for part in examples.parts()]
        self.sides = [Side(of_side) for of_side in zip(*parts, strict=True)]

    def sequences(self, texts: Texts) -> list[Sequences]:
        """Of each side."""
        if self.images:  # the same pixels, or another image
            keys = np.array([key_of(*text) for text in texts], np.int64).view(np.uint64)
            nothing = np.empty(0, np.int64)
            return [Sequences(keys, np.zeros(len(keys), np.int64), nothing, nothing.view(np.uint64))]
        first = [text or (pair or "" if self.generates else "") for text, pair in texts]  # running text is a target
        return [sequences_of(side) for side in (first, *([[pair or "" for _, pair in texts]] if self.pairs else []))]

    def find(self, sequences: Sequence[Sequences]) -> Matches:
        """`sequences`: of each side of some texts."""
        rows = self.sides[0].rows
        equal, near = (
            [getattr(side, kind)(each) for side, each in zip(self.sides, sequences, strict=True)]
            for kind in ("equal", "near")
        )
        every = [np.union1d(*of_side) for of_side in zip(equal, near, strict=True)]
        codes, same = (np.intersect1d(*each) if len(each) == 2 else each[0] for each in (every, equal))
        return Matches(codes // max(rows, 1), codes % max(rows, 1), np.isin(codes, same))


def row_keys(sequences: Sequence[Sequences]) -> np.ndarray:
    """(rows,) int64, equal for rows whose texts are all equal after normalisation."""
    keys = sequences[0].keys
    for more in sequences[1:]:
        keys = keys * FACTORS[0] + more.keys * FACTORS[1]
    return keys.view(np.int64)


def _runs(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of every run of equal numbers."""
    changes = np.flatnonzero(np.diff(groups)) + 1
    return np.concatenate([[0], changes]), np.append(changes, len(groups))
