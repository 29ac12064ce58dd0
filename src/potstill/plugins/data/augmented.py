"""Copies with masked and replaced words, and n-grams of them (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from potstill.data.augment.tagging import tag_examples, tagger_fingerprint
from potstill.data.augment.word_changes import Corpus, Rules, seeds_of
from potstill.data.derived import AddedRows, add_rows
from potstill.data.examples import Examples
from potstill.data.making import Context
from potstill.errors import InputError
from potstill.recipe.bounds import Count, Drawn, Share

FORMAT = 1  # of the draws: a new number makes copies be made again
AT_ONCE = 2**17  # words of all copies that are made together


@dataclass(frozen=True)
class Augmented:
    """For each word one X ~ U[0,1]: X < p_mask → [MASK]; X < p_mask + p_pos → a word of the same tag, by its count in the
    examples. Then, with p_ng, only a random n-gram is kept (or is masked), n ∈ {1 … longest}.

    Of a pair the first, the second, and both are changed in turn. Copies that are no new text are dropped. They hang on
    `draw`, not on the run's seed: all seeds learn from the same ones, about which the teacher is asked once.
    """

    copies: Count | None = None  # of each example; None: 20, of a pair 10
    p_mask: Share = 0.1
    p_pos: Share = 0.1
    p_ng: Share = 0.25
    longest: Count = 5  # words of an n-gram
    ngram: Literal["keep", "mask"] = "keep"
    labels: Literal["kept", "dropped"] | None = None  # of the copies; None: dropped where a teacher answers them
    tagger: str = "textblob"  # or spacy, or module:function
    draw: Drawn = 0

    def make(self, examples: Examples, context: Context) -> Examples:
        if context.task is not None and context.task.form != "text":
            raise InputError(
                f"data maker 'augmented' is for one text or a pair of texts, not for task '{context.task.name}'; "
                "leave it out of the stage's data"
            )
        if self.p_mask + self.p_pos > 1:
            raise InputError(
                f"data.augmented: p_mask + p_pos is {self.p_mask + self.p_pos:g}, more than 1; write smaller ones"
            )
        # of a text that was cut and changed the label is often wrong: gold labels on copies cost a BiLSTM four points
        kept = self.labels == "kept" if self.labels else context.teacher is None
        decides = [FORMAT, *asdict(self).items(), kept, tagger_fingerprint(self.tagger)]
        return add_rows(examples, decides, lambda: self._copies(examples, context), kept, keep_repeats=False)

    def _copies(self, examples: Examples, context: Context) -> Iterator[AddedRows]:
        pairs = examples.meta["pairs"]
        copies = self.copies or (10 if pairs else 20)
        with context.bar(f"tagging {examples.source}", len(examples)) as advance:
            corpus = Corpus(tag_examples(examples, self.tagger, advance))
        with context.bar(f"copying {examples.source}", len(examples)) as advance:
            for rows in chunks(copies * (1 + np.diff(corpus.texts.offsets[::2]))):
                yield self._chunk(examples, corpus, rows, copies, pairs)
                advance(len(rows))

    def _chunk(self, examples: Examples, corpus: Corpus, rows: np.ndarray, copies: int, pairs: bool) -> AddedRows:
        """The copies of some examples that are other texts."""
        rules = Rules(self.p_mask, self.p_pos, self.p_ng, self.longest, self.ngram)
        origins, numbers = np.repeat(rows, copies), np.tile(np.arange(copies), len(rows))
        keys = np.asarray(examples.keys[examples.index[origins]])
        before = [examples.text(row) for row in examples.index[rows]]
        texts: list[list[str | None]] = [[both[side] for both in before for _ in range(copies)] for side in (0, 1)]
        new = np.zeros(len(origins), np.bool_)
        for side in (0, 1) if pairs else (0,):
            # first only, second only, both
            turn = np.flatnonzero((numbers % 3 == side) | (numbers % 3 == 2)) if pairs else np.arange(len(origins))
            seeds = seeds_of(self.draw, keys[turn], numbers[turn], side)
            changed = corpus.changed(2 * origins[turn] + side, seeds, rules)
            which = np.flatnonzero(changed.altered)
            for place, text in zip(turn[which].tolist(), changed.texts(which), strict=True):
                texts[side][place] = text
            new[turn[which]] = True
        found = np.flatnonzero(new)
        return AddedRows([(str(texts[0][one]), texts[1][one]) for one in found.tolist()], origins[found])


def chunks(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Rows that follow each other, of so many words together that they fit into the cache, one at least."""
    begin, total = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if total and total + size > AT_ONCE:
            yield np.arange(begin, row)
            begin, total = row, 0
        total += size
    if begin < len(sizes):
        yield np.arange(begin, len(sizes))
