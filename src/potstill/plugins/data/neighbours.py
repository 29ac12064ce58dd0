"""The texts without labels that are nearest to the labelled rows (SentAugment: Du et al., 2021, arXiv:2010.02194)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from potstill.api import (
    Count,
    DataMaker,
    Examples,
    InputError,
    MakeContext,
    Student,
    nearest,
    text_vectors,
)

SHOWN, SHOWN_CHARACTERS = 3, 100  # texts that are said aloud


@dataclass(frozen=True)
class Neighbours(DataMaker):
    """Chosen: for each labelled row, the k unlabelled texts of highest cosine; near-duplicates are dropped, and the rest united.

    If there are not more texts than asked for, all are taken. Labelled rows stay.

    k: neighbours of each row.
    rows: most texts that are chosen: the nearest neighbours of all rows, then the second ones, and so on.
    by: "words", means of the teacher's word vectors weighted by rarity, which costs seconds; "teacher", means of its last states.
    """

    k: Count = 8
    rows: Count = 20_000
    by: Literal["words", "teacher"] = "words"

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        task = context.task
        if task is not None and task.form != "text":
            raise InputError(f"data.neighbours is for a text or a pair, not for task '{task.name}'; omit it")
        has_label = np.asarray(examples.labelled[examples.index])
        rows, others = np.flatnonzero(has_label), np.flatnonzero(~has_label)
        if not len(rows):
            raise InputError("data.neighbours: no row has a label, so there is nothing to be near to; omit it")
        if len(others) <= min(self.rows, self.k * len(rows)):
            _say(context, f"neighbours: all {len(others)} texts without labels are used, since not more are asked for")
            return examples
        if context.teacher is None or task is None:
            raise InputError(
                "data.neighbours: no teacher has vectors of the texts; name one with --teacher, or omit it"
            )
        assert isinstance(context.teacher, Student)
        make = text_vectors.word_means if self.by == "words" else text_vectors.last_states
        with context.bar(f"vectors of {examples.source}", len(examples)) as advance:
            blocks = make(examples, task, context.teacher, context.longest, advance)

        with context.bar("nearest texts", len(rows)) as advance:
            found, listed = nearest.choose(examples, blocks, task, self.k, self.rows, advance)
        kept = f"{len(found.positions):,} of {len(others):,} texts without labels are used, the nearest to the labelled rows"
        _say(context, f"neighbours: {kept}, listed in {listed}")
        for place in np.linspace(0, len(found.positions) - 1, SHOWN).astype(int) if len(found.positions) else ():
            text, row = (examples.text(examples.index[each[place]])[0] for each in found[:2])
            _say(context, f"  {found.cosines[place]:.2f}: '{text[:SHOWN_CHARACTERS]}', near '{row[:SHOWN_CHARACTERS]}'")
        return examples.take(np.sort(np.concatenate([rows, found.positions])))


def _say(context: MakeContext, text: str) -> None:
    if context.show:
        context.show.say(text)
