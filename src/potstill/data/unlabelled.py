"""More texts for the teacher to teach, of the same domain or another: added to train, never from dev or test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from potstill.data.derived import AddedRows, add_rows
from potstill.data.examples import CHUNK, Examples, key_of, store
from potstill.data.rows import Columns, Table, open_table
from potstill.data.task import DataTask
from potstill.errors import InputError


def with_unlabelled(
    train: Examples, source: str, like: Table, task: DataTask, held: Sequence[Examples], say: Callable[[str], None]
) -> Examples:
    """The rows of train, then those of `source` without a label, except for texts that stand in `held` too."""
    rows = store(open_unlabelled(source, like), task)
    kept = ~np.isin(rows.keys, np.concatenate([keys_without_targets(one, task) for one in held]))
    if dropped := int((~kept).sum()):
        say(f"{source}: {dropped} of {len(kept)} rows stand in dev or test too and are left out")
    if not kept.any():
        raise InputError(f"{source}: no row is left that is not in dev or test; give other texts")
    chosen = rows.take(np.flatnonzero(kept))

    def more() -> Iterator[AddedRows]:
        for begin in range(0, len(chosen), CHUNK):
            part = chosen.take(np.arange(begin, min(begin + CHUNK, len(chosen))))
            yield AddedRows(list(part.texts()), np.full(len(part), -1))

    which = xxhash.xxh3_128_hexdigest(chosen.index.tobytes())
    return add_rows(train, ["unlabelled", rows.folder.name, which], more)


def keys_without_targets(examples: Examples, task: DataTask) -> np.ndarray:
    """Keys as rows without a label have them: a text is the same, however it is translated."""
    if task.form == "translation":
        return np.array([key_of(text, "") for text, _ in examples.texts()], np.int64)
    return np.asarray(examples.keys[examples.index])


def open_unlabelled(source: str, like: Table) -> Table:
    """A table of texts, its labels unread, and translations are labels. Columns are called as those of train, or have
    usual names of their own; what stands before every text of train stands before these."""
    usual = Columns(before=like.columns.before)
    try:
        asked = replace(usual, text=like.columns.text, pair=like.columns.pair, choices=like.columns.choices)
        if like.form == "translation":
            asked = replace(usual, text=like.columns.text)
        table = open_table(source, asked, form=like.form)
    except InputError:
        table = open_table(source, usual, form=like.form)
    if like.form == "translation":
        return replace(table, columns=replace(usual, text=table.columns.text))
    if (table.columns.pair is None) != (like.columns.pair is None) or table.choices != like.choices:
        raise InputError(
            f"{source} and {like.source} do not have the same parts (one text or two, or as many candidates); "
            "call the columns as they are called there"
        )
    if table.shape != like.shape:
        raise InputError(f"{source} and {like.source} have images of different sizes; give images of one size")
    return replace(table, columns=replace(table.columns, label=None), answers=None)
