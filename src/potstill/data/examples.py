"""Rows as examples: read once, memory-mapped ever after.

A folder of examples holds one flat binary file per column. Nothing in memory grows with the text; only positions and
lengths (a few bytes per row) are held while an epoch is laid out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from potstill.data.label_names import column_order
from potstill.data.rows import Row, Table
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system import paths
from potstill.system.column_files import ColumnFiles, column, made_once
from potstill.system.randomness import mix

CHUNK = 1000  # rows read and tokenised at once
LETTERS = 2**24  # of which fewer are, if they have more letters than this
FORMAT = 2  # of the folders below; a new number makes old ones be made again


def key_of(text: str, pair: str | None) -> int:
    """int64 hash of an example's text(s): the same text has the same answers, wherever it stands."""
    joined = text.encode() if pair is None else text.encode() + b"\x00\x00" + pair.encode()
    return int(np.uint64(xxhash.xxh3_64_intdigest(joined)).astype(np.int64))


@dataclass(frozen=True)
class Examples:
    """Rows of a folder, in a given order. `take` gives others of the same folder; nothing is copied."""

    source: str  # for messages
    folder: Path
    index: np.ndarray  # (n,) int64: which rows of the folder

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: np.ndarray) -> Examples:
        return replace(self, index=self.index[rows])

    def sample(self, rows: int, seed: int) -> Examples:
        """Return `rows` examples drawn without repetition, in their order; all of them if there are fewer."""
        order = np.random.default_rng(mix(seed, "sample")).permutation(len(self))
        return self.take(np.sort(order[:rows]))

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "meta.json").read_text()))

    @cached_property
    def keys(self) -> np.ndarray:
        return column(self.folder, "keys", np.int64)

    @cached_property
    def targets(self) -> np.ndarray:
        """(rows of the folder,) or (rows, width); flat where rows have targets of many lengths, see `gold`."""
        return column(self.folder, "targets", np.float32, self.meta["target_width"] or 1)

    @cached_property
    def target_offsets(self) -> np.ndarray:
        return column(self.folder, "target_offsets", np.int64)

    @cached_property
    def answers(self) -> np.ndarray:
        """(rows of the folder, classes) logits that the file carries; NaN where it has none."""
        return column(self.folder, "answers", np.float32).reshape(len(self.keys), -1)

    @cached_property
    def labelled(self) -> np.ndarray:
        return column(self.folder, "labelled", np.bool_)

    @property
    def labelled_only(self) -> Examples:
        """Those with a label: only they can be scored."""
        return self.take(np.flatnonzero(self.labelled[self.index]))

    def gold(self, row: int) -> np.ndarray | None:
        """The targets of a row of the folder; None without a label."""
        if not self.labelled[row]:
            return None
        if self.meta["target_width"]:
            return np.asarray(self.targets[row])
        return np.asarray(self.targets[self.target_offsets[row] : self.target_offsets[row + 1]])

    def texts(self) -> Iterator[tuple[str, str | None]]:
        for row in self.index:
            yield self.text(row)

    def chunks(self) -> Iterator[range]:
        """All rows of the folder, as many at a time as can be held with their texts."""
        begin, starts = 0, self._text_offsets[::2]
        while begin < len(starts) - 1:
            fitting = int(np.searchsorted(starts, starts[begin] + LETTERS, "right")) - 1
            end = min(begin + CHUNK, max(fitting, begin + 1), len(starts) - 1)
            yield range(begin, end)
            begin = end

    def text(self, row: int) -> tuple[str, str | None]:
        """The text and pair of a row of the folder."""
        starts = self._text_offsets[2 * row : 2 * row + 3]
        raw = self._text_bytes
        text, pair = (bytes(raw[starts[i] : starts[i + 1]]).decode() for i in (0, 1))
        return text, pair if self.meta["pairs"] else None

    @cached_property
    def _text_offsets(self) -> np.ndarray:
        return column(self.folder, "text_offsets", np.int64)

    @cached_property
    def _text_bytes(self) -> np.ndarray:
        return column(self.folder, "texts", np.uint8)


def store(table: Table, task: DataTask | None = None) -> Examples:
    """Write the table's rows to disk, with targets if there is a task. A second call with the same bytes reads them back."""
    read = [table.kind, table.fingerprint, table.columns.__dict__, table.answers, table.choices, table.shape]
    matched = [task.form, task.outcome, task.labels, sorted(task.numbers.items())] if task else []
    folder = paths.examples() / xxhash.xxh3_128_hexdigest(json.dumps([FORMAT, *read, *matched], default=list).encode())
    meta = made_once(folder, partial(_write, table, task))
    return Examples(table.source, folder, np.arange(meta["rows"]))


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """So many rows that their texts can be held at once."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.text) + len(row.pair or "")
        if len(chunk) == CHUNK or size > LETTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _write(table: Table, task: DataTask | None, columns: ColumnFiles) -> None:
    width = task.target_width if task else 1
    columns.add("text_offsets", np.zeros(1, np.int64))
    if not width:
        columns.add("target_offsets", np.zeros(1, np.int64))
    rows = end = labelled = targets_end = 0
    pairs = False
    order = _answer_order(table, task) if task else None
    for chunk in _chunks(table.rows()):
        pieces = [piece.encode() for row in chunk for piece in (row.text, row.pair or "")]
        ends = np.cumsum([len(piece) for piece in pieces]) + end
        where = [f"{table.source}:{row.line}" for row in chunk]
        known = [task is not None and row.label is not None for row in chunk]
        targets = [
            [0.0] * width if task is None or row.label is None else task.encode(row.label, at)
            for row, at in zip(chunk, where, strict=True)
        ]
        columns.add("texts", np.frombuffer(b"".join(pieces), np.uint8))
        columns.add("text_offsets", ends.astype(np.int64))
        columns.add("keys", np.array([key_of(row.text, row.pair) for row in chunk], np.int64))
        columns.add("targets", np.array([number for target in targets for number in target], np.float32))
        if not width:
            target_ends = np.cumsum([len(target) for target in targets]) + targets_end
            columns.add("target_offsets", target_ends.astype(np.int64))
            targets_end = int(target_ends[-1])
        columns.add("labelled", np.array(known, np.bool_))
        if task and table.has_answers:
            columns.add(
                "answers", np.stack([_answer(row, order, task, at) for row, at in zip(chunk, where, strict=True)])
            )
        pairs = pairs or any(row.pair is not None for row in chunk)
        rows, end, labelled = rows + len(chunk), int(ends[-1]), labelled + sum(known)
    if table.digest() != table.fingerprint:
        raise InputError(f"{table.source} changed while it was read; run again when it is written to the end")
    about = {"rows": rows, "labelled": labelled, "target_width": width, "pairs": pairs}
    columns.finish({**about, "answers": task is not None and table.has_answers})


def _answer_order(table: Table, task: DataTask) -> list[int] | None:
    """Where each class of the task stands among the columns of the file's answers."""
    if not table.has_answers or table.answer_labels is None:
        return None
    order = column_order(table.answer_labels, task.labels)
    if order is None:
        raise InputError(
            f"{table.source}: the answers are for {list(table.answer_labels)}, the classes are {list(task.labels)}; "
            "name the columns after the classes"
        )
    return order


def _answer(row: Row, order: list[int] | None, task: DataTask, where: str) -> np.ndarray:
    if row.answer is None:
        return np.full(task.classes, np.nan, np.float32)
    if len(row.answer) != task.classes:
        raise InputError(
            f"{where}: {len(row.answer)} numbers in the teacher's answer, but there are {task.classes} classes; write one for each"
        )
    return np.array([row.answer[i] for i in order] if order else row.answer, np.float32)
