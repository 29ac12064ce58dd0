"""Examples made from other examples: with more rows, or with other targets. Written once, found by what decides them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from potstill.data.examples import CHUNK, Examples, ExampleWriter, folder_of, key_of
from potstill.data.row import HAS_TARGET
from potstill.data.task import DataTask
from potstill.system.column_files import ColumnFiles, column, write_once


class AddedRows(NamedTuple):
    texts: list[tuple[str, str | None]]
    origins: np.ndarray  # (n,) position of the example from which each was made; -1: none


def add_rows(
    examples: Examples,
    what: list[Any],
    more: Callable[[], Iterable[AddedRows]],
    with_labels: bool = False,
    keep_repeats: bool = True,
) -> Examples:
    """Return the examples, followed by the rows of `more`. An interrupted call leaves nothing behind.

    `what` describes the rows and is part of the folder's hash. With `with_labels` an added row has the label of its
    origin, otherwise none. Without `keep_repeats`, rows are omitted whose text occurs before them.
    """

    def write(columns: ColumnFiles) -> None:
        writer = ExampleWriter(columns, examples.meta["target_width"])
        # of rows without an origin, which is -1, the last entries are read: no label, and any target
        has_label = np.append(examples.labelled[examples.index], False)
        index = np.append(examples.index, 0)
        every_key: list[np.ndarray] = []

        def add(texts: list[tuple[str, str | None]], keys: np.ndarray, origins: np.ndarray, labels: np.ndarray) -> None:
            rows = index[origins]
            targets = examples.targets[rows] if writer.width else [examples.gold(row) for row in rows]
            writer.add(texts, targets, labels, keys, origins=origins.astype(np.int64))
            every_key.append(keys)

        for begin, part in zip(range(0, len(examples), CHUNK), examples.parts(), strict=True):
            positions = np.arange(begin, begin + len(part))
            add(list(part.texts()), np.asarray(examples.keys[part.index]), positions, has_label[positions])
        for texts, origins in more():
            keys = np.array([key_of(*text) for text in texts], np.int64)
            if not keep_repeats:  # repeats of earlier chunks are found below
                first = np.sort(np.unique(keys, return_index=True)[1])
                texts, keys, origins = [texts[position] for position in first], keys[first], origins[first]
            if texts:
                add(texts, keys, origins, has_label[origins] & with_labels)
        kept = np.arange(writer.rows)
        if not keep_repeats:
            first = np.unique(np.concatenate(every_key), return_index=True)[1]
            kept = np.concatenate([kept[: len(examples)], np.sort(first[first >= len(examples)])])
        columns.add("kept", kept)
        writer.finish()  # answers of a teacher in the file stay with the original examples

    folder = folder_of("more rows", examples.folder.name, examples.index_hash, with_labels, keep_repeats, *what)
    write_once(folder, write)
    return Examples(examples.source, folder, np.array(column(folder, "kept", np.int64)))


def replace_targets(
    examples: Examples, what: list[Any], rows: Callable[[], Iterator[tuple[str, str, int]]], task: DataTask | None
) -> Examples:
    """Return examples with other second texts: `rows` yields text, second text and position of the original example.

    A row is labelled unless its second text is empty: then there is nothing to learn. `what` describes the rows and is
    part of the folder's hash.
    """
    width = examples.meta["target_width"]
    target = list(task.encode(HAS_TARGET, examples.source)) if task else [0.0] * width

    def write(columns: ColumnFiles) -> None:
        writer, remaining = ExampleWriter(columns, width), rows()
        while chunk := list(islice(remaining, CHUNK)):
            labelled = np.array([bool(pair) for _, pair, _ in chunk])
            origins = np.array([origin for *_, origin in chunk], np.int64)
            writer.add([(text, pair) for text, pair, _ in chunk], [target] * len(chunk), labelled, origins=origins)
        writer.finish()

    folder = folder_of("other targets", examples.folder.name, examples.index_hash, target, *what)
    return Examples(examples.source, folder, np.arange(write_once(folder, write)["rows"]))
