"""Rows as examples with targets: written to disk once, memory-mapped afterwards.

A folder of examples has one flat binary file per column, which `ExampleWriter` writes and `Examples` reads. Memory does
not grow with the texts; only positions and lengths (a few bytes per row) are held while an epoch is planned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from potstill.data.formats.reading import TEXT_LINES
from potstill.data.label_names import column_order
from potstill.data.row import Row
from potstill.data.rows import Table
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system import interrupts, paths
from potstill.system.column_files import ColumnFiles, column, write_once
from potstill.system.randomness import mix

CHUNK = 1000  # rows that are read and tokenised together
CHUNK_CHARACTERS = 2**24  # a chunk has fewer rows if its texts are longer than this
HEADING = re.compile(r"\s*= [^=].* =\s*")  # of an article of WikiText
FORMAT = 3  # of the folders; raise it to have old folders ignored and written again


def key_of(text: str, pair: str | None) -> int:
    """Return an int64 hash of an example's text(s): the same text has the same answers in every file."""
    joined = text.encode() if pair is None else text.encode() + b"\x00\x00" + pair.encode()
    return int(np.uint64(xxhash.xxh3_64_intdigest(joined)).astype(np.int64))


def folder_of(*parts: Any) -> Path:
    """Return the folder of the examples that `parts` decide."""
    return paths.cache() / "examples" / xxhash.xxh3_128_hexdigest(json.dumps([FORMAT, *parts], default=list).encode())


@dataclass(frozen=True)
class Examples:
    """Some rows of a folder, in some order. `take` selects from them; nothing is copied."""

    source: str  # for messages
    folder: Path
    index: np.ndarray  # (n,) int64: rows of the folder

    def __len__(self) -> int:
        return len(self.index)

    def take(self, positions: np.ndarray) -> Examples:
        return replace(self, index=self.index[positions])

    def sample(self, rows: int, seed: int) -> Examples:
        """Return `rows` examples drawn without repetition, in their order; all of them if there are fewer."""
        order = np.random.default_rng(mix(seed, "sample")).permutation(len(self))
        return self.take(np.sort(order[:rows]))

    @property
    def labelled_only(self) -> Examples:
        """The examples that have a label."""
        return self.take(np.flatnonzero(self.labelled[self.index]))

    @property
    def index_hash(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.index.tobytes())

    @cached_property
    def meta(self) -> dict[str, Any]:
        """Numbers about the whole folder: rows, labelled, target_width, pairs, answers."""
        return dict(json.loads((self.folder / "meta.json").read_text()))

    @cached_property
    def keys(self) -> np.ndarray:
        """(rows of the folder,) see `key_of`"""
        return column(self.folder, "keys", np.int64)

    @cached_property
    def targets(self) -> np.ndarray:
        """(rows of the folder,) or (rows, width); flat if the number of targets differs from row to row, see `gold`."""
        return column(self.folder, "targets", np.float32, self.meta["target_width"] or 1)

    @cached_property
    def target_offsets(self) -> np.ndarray:
        return column(self.folder, "target_offsets", np.int64)

    @cached_property
    def answers(self) -> np.ndarray:
        """(rows of the folder, classes) logits of a teacher in the file; NaN for rows without."""
        return column(self.folder, "answers", np.float32).reshape(len(self.keys), -1)

    @cached_property
    def labelled(self) -> np.ndarray:
        """(rows of the folder,) bool"""
        return column(self.folder, "labelled", np.bool_)

    @cached_property
    def origins(self) -> np.ndarray:
        """(rows of the folder,) position of the example from which each was made. Only derived examples have it."""
        return column(self.folder, "origins", np.int64)

    @cached_property
    def documents(self) -> np.ndarray:
        """(rows of the folder,) number of the document, ascending. Only running text has it."""
        if not (self.folder / "documents.bin").exists():
            problem = "rows that were added to running text belong to no document"
            raise InputError(f"{self.source}: {problem}; omit unlabelled in [data], and data makers that add rows")
        return column(self.folder, "documents", np.int64)

    def gold(self, row: int) -> np.ndarray | None:
        """Return the targets of a row of the folder; None if it has no label."""
        if not self.labelled[row]:
            return None
        if self.meta["target_width"]:
            return np.asarray(self.targets[row])
        return np.asarray(self.targets[self.target_offsets[row] : self.target_offsets[row + 1]])

    def text(self, row: int) -> tuple[str, str | None]:
        """Return text and second text of a row of the folder."""
        starts = self._text_offsets[2 * row : 2 * row + 3]
        text, pair = (bytes(self._text_bytes[starts[i] : starts[i + 1]]).decode() for i in (0, 1))
        return text, pair if self.meta["pairs"] else None

    def texts(self) -> Iterator[tuple[str, str | None]]:
        for row in self.index:
            yield self.text(row)

    def parts(self) -> Iterator[Examples]:
        """Yield these examples in parts of `CHUNK`."""
        for begin in range(0, len(self), CHUNK):
            yield self.take(np.arange(begin, min(begin + CHUNK, len(self))))

    def chunks(self) -> Iterator[range]:
        """Yield all rows of the folder, so many at a time that their texts fit into memory."""
        begin, starts = 0, self._text_offsets[::2]
        while begin < len(starts) - 1:
            fitting = int(np.searchsorted(starts, starts[begin] + CHUNK_CHARACTERS, "right")) - 1
            end = min(begin + CHUNK, max(fitting, begin + 1), len(starts) - 1)
            yield range(begin, end)
            begin = end

    @cached_property
    def _text_offsets(self) -> np.ndarray:
        return column(self.folder, "text_offsets", np.int64)

    @cached_property
    def _text_bytes(self) -> np.ndarray:
        return column(self.folder, "texts", np.uint8)


class ExampleWriter:
    """Writes a folder of examples, some rows at a time."""

    def __init__(self, columns: ColumnFiles, target_width: int) -> None:
        """`target_width` is the number of targets per row; 0 if it differs from row to row."""
        self.columns, self.width = columns, target_width
        self.rows = self.labelled = 0
        self.pairs = False

    def add(
        self,
        texts: Sequence[tuple[str, str | None]],
        targets: Sequence[Any] | np.ndarray,
        labelled: np.ndarray,
        keys: np.ndarray | None = None,
        **others: np.ndarray,
    ) -> None:
        """Append rows. The targets of unlabelled rows are ignored; `others` are columns that not all folders have."""
        encoded = [part.encode() for text, pair in texts for part in (text, pair or "")]
        self.columns.add("texts", np.frombuffer(b"".join(encoded), np.uint8))
        self.columns.add_offsets("text_offsets", [len(part) for part in encoded])
        self.columns.add("keys", np.array([key_of(*text) for text in texts], np.int64) if keys is None else keys)
        if self.width:
            values = np.array(targets, np.float32).reshape(len(texts), self.width)
            values[~labelled] = 0.0
            self.columns.add("targets", values)
        else:
            kept = [np.ravel(target) if has_label else () for target, has_label in zip(targets, labelled, strict=True)]
            self.columns.add("targets", np.array([number for each in kept for number in each], np.float32))
            self.columns.add_offsets("target_offsets", [len(each) for each in kept])
        self.columns.add("labelled", np.asarray(labelled, np.bool_))
        for name, values in others.items():
            self.columns.add(name, values)
        self.rows += len(texts)
        self.labelled += int(np.sum(labelled))
        self.pairs = self.pairs or any(pair is not None for _, pair in texts)
        interrupts.stop_if_asked()

    def finish(self, answers: bool = False) -> None:
        counts = {"rows": self.rows, "labelled": self.labelled}
        self.columns.finish({**counts, "target_width": self.width, "pairs": self.pairs, "answers": answers})


def store(table: Table, task: DataTask | None = None) -> Examples:
    """Write the table's rows to disk, with targets if there is a task. A second call with the same bytes reads them back."""
    content = [table.kind, table.fingerprint, table.columns.__dict__, table.answers, table.choices, table.shape]
    labels = [task.form, task.outcome, task.labels, sorted(task.numbers.items())] if task else []
    labels += ["documents"] if task and task.own_targets else []
    folder = folder_of(*content, *labels)
    meta = write_once(folder, partial(_write, table, task))
    return Examples(table.source, folder, np.arange(meta["rows"]))


def _write(table: Table, task: DataTask | None, columns: ColumnFiles) -> None:
    writer = ExampleWriter(columns, task.target_width if task else 1)
    nothing = [0.0] * writer.width
    with_answers = task is not None and table.answers is not None and not task.vocabulary
    own_targets = task is not None and task.own_targets
    order = _answer_order(table, task) if task else None
    documents = Documents(table.kind)
    for chunk in _chunks(row for row in table.rows() if not own_targets or documents.take(row)):
        labelled = np.array([own_targets or (task is not None and row.label is not None) for row in chunk], np.bool_)
        targets = [
            task.encode(row.label, f"{table.source}:{row.line}") if task and row.label is not None else nothing
            for row in chunk
        ]
        answers = [_answer(row, order, task, table.source) for row in chunk] if task and with_answers else []
        others = {"answers": np.stack(answers)} if answers else {}
        others |= {"documents": documents.numbers(len(chunk))} if own_targets else {}
        writer.add([(row.text, row.pair) for row in chunk], targets, labelled, **others)
    if table.digest() != table.fingerprint:
        raise InputError(f"{table.source} changed while it was read; run again when it is complete")
    writer.finish(with_answers)


class Documents:
    """Which document each row of running text belongs to. Every row of a table is one; in a text file an empty line ends a
    document, in WikiText's the heading of the next article."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.number, self.ended = -1, True
        self.taken: list[int] = []

    def take(self, row: Row) -> bool:
        """Number the row, unless it is an empty line between paragraphs, which holds nothing to predict."""
        if not row.text.strip() and not row.pair:
            self.ended = self.ended or self.kind == "lines"
            return False
        heading = self.kind == "wikitext" and HEADING.fullmatch(row.text)
        if self.ended or heading or self.kind not in TEXT_LINES:
            self.number += 1
        self.ended = False
        self.taken.append(self.number)
        return True

    def numbers(self, rows: int) -> np.ndarray:
        """(rows,) the documents of the first rows that were taken, which are forgotten."""
        numbers, self.taken = self.taken[:rows], self.taken[rows:]
        return np.array(numbers, np.int64)


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield so many rows at a time that their texts fit into memory."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.text) + len(row.pair or "")
        if len(chunk) == CHUNK or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _answer_order(table: Table, task: DataTask) -> list[int] | None:
    """Return for each class of the task its position in the file's answers; None if they are in the same order."""
    if table.answer_labels is None:
        return None
    order = column_order(table.answer_labels, task.labels)
    if order is None:
        reason = f"the answers are for {list(table.answer_labels)}, but the classes are {list(task.labels)}"
        raise InputError(f"{table.source}: {reason}; name the columns after the classes")
    return order


def _answer(row: Row, order: list[int] | None, task: DataTask, source: str) -> np.ndarray:
    if row.answer is None:
        return np.full(task.classes, np.nan, np.float32)
    if len(row.answer) != task.classes:
        reason = f"{len(row.answer)} numbers in the teacher's answer, but there are {task.classes} classes"
        raise InputError(f"{source}:{row.line}: {reason}; write one for each")
    return np.array([row.answer[i] for i in order] if order else row.answer, np.float32)
