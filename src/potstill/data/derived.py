"""Examples with more rows behind them, in a folder of their own: written once, found by what decides them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import CHUNK, Examples, key_of
from potstill.system import interrupts, paths
from potstill.system.column_files import ColumnFiles, column, made_once

FORMAT = 1  # of the folders below


class AddedRows(NamedTuple):
    """Rows to be added."""

    texts: list[tuple[str, str | None]]
    origins: np.ndarray  # (n,) position of the example that each was made of; -1: of none


def add_rows(
    examples: Examples,
    what: list[Any],
    more: Callable[[], Iterable[AddedRows]],
    with_labels: bool = False,
    repeated: bool = True,
) -> Examples:
    """The examples, then `more`; which of them these are is told by `what`. A stopped call leaves nothing behind.

    Added rows have the label of their origin where `with_labels`, else none. Unless `repeated`, one whose text stands
    before it already is left out.
    """
    index = xxhash.xxh3_128_hexdigest(examples.index.tobytes())
    decides = json.dumps([FORMAT, examples.folder.name, index, with_labels, repeated, *what])
    folder = paths.examples() / xxhash.xxh3_128_hexdigest(decides.encode())
    made_once(folder, lambda columns: _write(examples, more(), with_labels, repeated, columns))
    return Examples(examples.source, folder, np.array(column(folder, "kept", np.int64)))


def origins(examples: Examples) -> np.ndarray:
    """(rows of the folder,) position of the example that each was made of: its own for those that were there before."""
    return column(examples.folder, "origins", np.int64)


def _write(
    examples: Examples, more: Iterable[AddedRows], with_labels: bool, repeated: bool, columns: ColumnFiles
) -> None:
    width = examples.meta["target_width"]
    ends = {"text_offsets": 0} | ({} if width else {"target_offsets": 0})
    for name in ends:
        columns.add(name, np.zeros(1, np.int64))
    keys: list[np.ndarray] = []
    labelled = 0

    def add(texts: list[tuple[str, str | None]], their_keys: np.ndarray, origins: np.ndarray, told: np.ndarray) -> None:
        nonlocal labelled
        pieces = [piece.encode() for both in texts for piece in (both[0], both[1] or "")]
        sizes = {"text_offsets": [len(one) for one in pieces]}
        columns.add("texts", np.frombuffer(b"".join(pieces), np.uint8))
        if width:
            targets = np.array(examples.targets[examples.index[origins]])
            targets[~told] = 0.0
            columns.add("targets", targets)
        else:  # as many for each as it has
            golds = [np.ravel(examples.gold(examples.index[one])) for one in origins[told]]  # type: ignore[arg-type]
            columns.add("targets", np.concatenate([np.empty(0, np.float32), *golds]))
            counts = np.zeros(len(texts), np.int64)
            counts[told] = [len(gold) for gold in golds]
            sizes["target_offsets"] = counts.tolist()
        columns.add("keys", their_keys)
        columns.add("labelled", told)
        columns.add("origins", origins.astype(np.int64))
        for name in ends:
            offsets = ends[name] + np.cumsum(sizes[name], dtype=np.int64)
            columns.add(name, offsets)
            ends[name] = int(offsets[-1])
        keys.append(their_keys)
        labelled += int(told.sum())
        if asked := interrupts.asked():
            raise interrupts.Interrupted(asked)

    known = np.asarray(examples.labelled[examples.index])
    for begin in range(0, len(examples), CHUNK):
        rows = np.arange(begin, min(begin + CHUNK, len(examples)))
        part = examples.take(rows)
        add(list(part.texts()), np.asarray(examples.keys[part.index]), rows, known[rows])
    for texts, origins in more:
        their_keys = np.array([key_of(*both) for both in texts], np.int64)
        if not repeated:  # within these; the others are told apart below
            first = np.sort(np.unique(their_keys, return_index=True)[1])
            texts, their_keys, origins = [texts[one] for one in first], their_keys[first], origins[first]
        if texts:
            told = known[origins] & (origins >= 0) if with_labels else np.zeros(len(origins), np.bool_)
            add(texts, their_keys, origins, told)
    every = np.concatenate(keys)
    kept = np.arange(len(every))
    if not repeated:
        first = np.unique(every, return_index=True)[1]
        kept = np.concatenate([kept[: len(examples)], np.sort(first[first >= len(examples)])])
    columns.add("kept", kept)
    about = {"rows": len(every), "labelled": labelled, "target_width": width, "pairs": examples.meta["pairs"]}
    columns.finish({**about, "answers": False})  # a file's answers are read from the examples before
