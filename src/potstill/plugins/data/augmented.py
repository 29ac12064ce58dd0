"""Copies with masked and replaced words, and n-grams of them (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
    tagging,
    word_changes,
)

FORMAT = 1  # of the draws: a new number discards the copies that are stored
AT_ONCE = 2**17  # about so many words are copied together, so that they fit the cache


@dataclass(frozen=True)
class Augmented(DataMaker):
    """Each word draws X ~ U[0,1]: X < p_mask → [MASK]; X < p_mask + p_pos → a word of the same tag, by its frequency in the
    examples. Then, with probability p_ng, only a random n-gram is kept (or masked), n ∈ {1 … longest}.

    In pairs the first text, the second, and both are changed in turn. Copies equal to another text are dropped. The copies
    depend on `draw`, not on the run's seed: all seeds learn from the same ones, and the teacher is asked once.

    copies: of each example. None: 20, or 10 of a pair.
    longest: words of an n-gram.
    labels: of the copies. None: dropped if there is a teacher.
    tagger: textblob, spacy, or module:function.
    draw: decides the draws.
    """

    copies: Count | None = None
    p_mask: Share = 0.1
    p_pos: Share = 0.1
    p_ng: Share = 0.25
    longest: Count = 5
    ngram: Literal["keep", "mask"] = "keep"
    labels: Literal["kept", "dropped"] | None = None
    tagger: str = "textblob"
    draw: Drawn = 0

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        if context.task is not None and context.task.form != "text":
            raise InputError(f"data.augmented is for a text or a pair, not for task '{context.task.name}'; omit it")
        if (together := self.p_mask + self.p_pos) > 1:
            raise InputError(f"data.augmented: p_mask + p_pos is {together:g}, more than 1; write smaller numbers")
        # a text that was cut and changed often has another label: gold labels on copies cost a BiLSTM four points
        kept = self.labels == "kept" if self.labels else context.teacher is None
        decides = [FORMAT, *asdict(self).items(), kept, tagging.tagger_fingerprint(self.tagger)]
        return derived.add_rows(examples, decides, lambda: self._copies(examples, context), kept, keep_repeats=False)

    def _copies(self, examples: Examples, context: MakeContext) -> Iterator[derived.AddedRows]:
        copies = self.copies or (10 if examples.meta["pairs"] else 20)
        with context.bar(f"tagging {examples.source}", len(examples)) as advance:
            corpus = word_changes.Corpus(tagging.tag_examples(examples, self.tagger, advance))
        with context.bar(f"copying {examples.source}", len(examples)) as advance:
            words = np.cumsum(copies * (1 + np.diff(corpus.texts.offsets[::2])))
            for rows in np.split(np.arange(len(words)), np.flatnonzero(np.diff(words // AT_ONCE)) + 1):
                yield self._copies_of(rows, examples, corpus, copies)
                advance(len(rows))

    def _copies_of(
        self, rows: np.ndarray, examples: Examples, corpus: word_changes.Corpus, copies: int
    ) -> derived.AddedRows:
        """Return the copies of these examples that differ from them."""
        pairs = examples.meta["pairs"]
        rules = word_changes.Rules(self.p_mask, self.p_pos, self.p_ng, self.longest, self.ngram)
        origins, numbers = np.repeat(rows, copies), np.tile(np.arange(copies), len(rows))
        keys = np.asarray(examples.keys[examples.index[origins]])
        before = [examples.text(row) for row in examples.index[rows]]
        texts: list[list[str | None]] = [[both[side] for both in before for _ in range(copies)] for side in (0, 1)]
        new = np.zeros(len(origins), np.bool_)
        for side in (0, 1) if pairs else (0,):
            # first only, second only, both
            turn = np.flatnonzero((numbers % 3 == side) | (numbers % 3 == 2)) if pairs else np.arange(len(origins))
            seeds = word_changes.seeds_of(self.draw, keys[turn], numbers[turn], side)
            changed = corpus.changed(2 * origins[turn] + side, seeds, rules)
            altered = np.flatnonzero(changed.altered)
            for place, text in zip(turn[altered].tolist(), changed.texts(altered), strict=True):
                texts[side][place] = text
            new[turn[altered]] = True
        kept = np.flatnonzero(new)
        return derived.AddedRows([(str(texts[0][place]), texts[1][place]) for place in kept.tolist()], origins[kept])
