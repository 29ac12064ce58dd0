"""Copies with words that a masked language model or word vectors suggest (Jiao et al., 2020, arXiv:1909.10351)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from potstill.api import (
    Count,
    DataMaker,
    Drawn,
    Examples,
    InputError,
    MakeContext,
    Share,
    derived,
    word_candidates,
    word_changes,
)

FORMAT = 1  # of the draws: a new number discards the copies that are stored


@dataclass(frozen=True)
class MaskedWords(DataMaker):
    """Each word with candidates becomes, with probability p, one of them: for a word of one piece the most probable words where the
    text has [MASK] instead, for others those with the nearest vectors.

    In pairs the first text, the second, and both are changed in turn. Copies equal to another text are dropped. The copies
    depend on `draw`, not on the run's seed. Candidates are stored text by text: a stopped run goes on where it was.

    model: a masked language model. None: all words have candidates of the vectors.
    copies: of each example.
    p: the probability that a word is replaced.
    candidates: of a word.
    vectors: "glove", or a file of words with their vectors. None: words of several pieces stay.
    labels: of the copies. None: dropped if there is a teacher.
    draw: decides the draws.
    """

    model: str | None = None
    copies: Count = 20
    p: Share = 0.4
    candidates: Count = 15
    vectors: str | None = None
    labels: Literal["kept", "dropped"] | None = None
    draw: Drawn = 0

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        if context.task is not None and context.task.form != "text":
            raise InputError(f"data.masked_words is for a text or a pair, not for task '{context.task.name}'; omit it")
        if self.model is None and self.vectors is None:
            raise InputError("data.masked_words: nothing gives candidates; write model = 'DIR', or vectors = 'glove'")
        kept = self.labels == "kept" if self.labels else context.teacher is None
        finder = word_candidates.Finder("data.masked_words", self.model, self.vectors, self.candidates)
        decides = [FORMAT, finder.identity, self.copies, self.p, self.draw, kept]
        return derived.add_rows(examples, decides, lambda: self._copies(examples, finder, context), kept, False)

    def _copies(
        self, examples: Examples, finder: word_candidates.Finder, context: MakeContext
    ) -> Iterator[derived.AddedRows]:
        begin = 0
        with context.bar(f"replacing words of {examples.source}", len(examples)) as advance:
            for part in examples.parts():
                sides = [[text or "" for text in side] for side in zip(*part.texts(), strict=True)]
                choices = (
                    [finder.stored(side) for side in sides] if examples.meta["pairs"] else [finder.stored(sides[0])]
                )
                keys = np.asarray(examples.keys[part.index])
                copies = [
                    (row, copy)
                    for row in range(len(part))
                    for copy in self._of_row(row, int(keys[row]), sides, choices)
                ]
                origins = np.array([begin + row for row, _ in copies], np.int64)
                yield derived.AddedRows([copy for _, copy in copies], origins)
                begin += len(part)
                advance(len(part))

    def _of_row(
        self, row: int, key: int, sides: list[list[str]], choices: list[list[list[word_candidates.Choice]]]
    ) -> Iterator[tuple[str, str | None]]:
        """The copies of an example that differ from it."""
        numbers = np.arange(self.copies)
        columns = []
        for side, of_texts in enumerate(choices):
            text, found = sides[side][row], of_texts[row]
            seeds = word_changes.seeds_of(self.draw, np.full(self.copies, key), numbers, side)
            owners, places = np.divmod(np.arange(self.copies * len(found)), max(len(found), 1))
            rule, word = (
                word_changes.draw(seeds[owners], kind, places).reshape(self.copies, len(found))
                for kind in (word_changes.RULE, word_changes.WORD)
            )
            # in pairs first only, second only, both
            turn = (numbers % 3 == side) | (numbers % 3 == 2) if len(choices) > 1 else numbers >= 0
            columns.append(
                [
                    word_candidates.with_words(text, found, *drawn)
                    for drawn in zip((rule < self.p) & turn[:, None], word, strict=True)
                ]
            )
        before = tuple(sides[side][row] for side in range(len(choices)))
        for copy in zip(*columns, strict=True):
            if copy != before:
                yield copy[0], copy[1] if len(copy) > 1 else None
