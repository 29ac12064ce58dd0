"""Adds unlabelled texts to train, which the teacher then labels. Texts of dev and test are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from potstill.data.derived import AddedRows, add_rows
from potstill.data.examples import Examples, key_of, store
from potstill.data.rows import Columns, Table, open_table
from potstill.data.task import DataTask
from potstill.errors import InputError


def with_unlabelled(
    train: Examples, source: str, like: Table, task: DataTask, held_out: Sequence[Examples], say: Callable[[str], None]
) -> Examples:
    """Return the rows of train, then those of `source` without labels, except for texts that occur in `held_out`."""
    rows = store(open_unlabelled(source, like), task)
    new = ~np.isin(rows.keys, np.concatenate([_keys_without_targets(examples, task) for examples in held_out]))
    if omitted := int((~new).sum()):
        say(f"{source}: {omitted} of {len(new)} rows are also in dev or test and are left out")
    if not new.any():
        raise InputError(f"{source}: all rows are also in dev or test; give other texts")
    added = rows.take(np.flatnonzero(new))

    def more() -> Iterator[AddedRows]:
        for part in added.parts():
            yield AddedRows(list(part.texts()), np.full(len(part), -1))

    return add_rows(train, ["unlabelled", rows.folder.name, added.index_hash], more)


def _keys_without_targets(examples: Examples, task: DataTask) -> np.ndarray:
    """Return the keys that rows have without a label: those of a text do not depend on its translation."""
    if task.form == "translation":
        return np.array([key_of(text, "") for text, _ in examples.texts()], np.int64)
    return np.asarray(examples.keys[examples.index])


def open_unlabelled(source: str, like: Table) -> Table:
    """Open a table of texts without reading its labels or translations.

    Columns have the names of train's columns, or usual names of their own. What precedes every text of train precedes
    these texts too.
    """
    usual = Columns(before=like.columns.before)
    is_translation = like.form == "translation"
    pair = None if is_translation else like.columns.pair
    choices = None if is_translation else like.columns.choices
    try:
        table = open_table(source, replace(usual, text=like.columns.text, pair=pair, choices=choices), form=like.form)
    except InputError:
        table = open_table(source, usual, form=like.form)
    if is_translation:
        return replace(table, columns=replace(usual, text=table.columns.text))
    if (table.columns.pair is None) != (like.columns.pair is None) or table.choices != like.choices:
        reason = "do not have the same parts (one text or two, or the number of candidates)"
        raise InputError(f"{source} and {like.source} {reason}; use the same column names in both")
    if table.shape != like.shape:
        raise InputError(f"{source} and {like.source} have images of different sizes; give images of one size")
    return replace(table, columns=replace(table.columns, label=None), answers=None)
