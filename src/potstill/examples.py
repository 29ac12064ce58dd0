"""Rows as examples: read and tokenised once, memory-mapped ever after, cut into batches by a function of the seed.

A folder of examples holds one flat binary file per column. Nothing in memory grows with the text; only positions and
lengths (a few bytes per row) are held while an epoch is laid out.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from transformers import PreTrainedTokenizerBase

from potstill import paths
from potstill.errors import InputError
from potstill.files import TEMPORARY, write_atomically
from potstill.rows import Row, Table
from potstill.tasks import Task

CHUNK = 1000  # rows read and tokenised at once
FORMAT = 1  # of the folders below; a new number makes old ones be made again


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

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "meta.json").read_text()))

    def column(self, name: str, dtype: Any, width: int = 1) -> np.ndarray:
        """(rows of the folder,) or (rows, width), memory-mapped."""
        path = self.folder / f"{name}.bin"
        flat = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
        return flat.reshape(-1, width) if width > 1 else flat

    @cached_property
    def keys(self) -> np.ndarray:
        return self.column("keys", np.int64)

    @cached_property
    def targets(self) -> np.ndarray:
        return self.column("targets", np.float32, self.meta["target_width"])

    @cached_property
    def labelled(self) -> np.ndarray:
        return self.column("labelled", np.bool_)

    @property
    def scored(self) -> Examples:
        """Those with a label: only they can be scored."""
        return self.take(np.flatnonzero(self.labelled[self.index]))

    def texts(self) -> Iterator[tuple[str, str | None]]:
        for row in self.index:
            yield self.text(row)

    def text(self, row: int) -> tuple[str, str | None]:
        """The text and pair of a row of the folder."""
        starts = self._text_offsets[2 * row : 2 * row + 3]
        raw = self._text_bytes
        text, pair = (bytes(raw[starts[i] : starts[i + 1]]).decode() for i in (0, 1))
        return text, pair if self.meta["pairs"] else None

    @cached_property
    def _text_offsets(self) -> np.ndarray:
        return self.column("text_offsets", np.int64)

    @cached_property
    def _text_bytes(self) -> np.ndarray:
        return self.column("texts", np.uint8)


class _Columns:
    """Files of a folder in the making; the folder takes its name when all are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.making = folder, folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{folder.name}")
        self.making.mkdir(parents=True)
        self.files: dict[str, IO[bytes]] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        if name not in self.files:
            self.files[name] = (self.making / f"{name}.bin").open("wb")
        self.files[name].write(np.ascontiguousarray(values).tobytes())

    def finish(self, meta: dict[str, Any]) -> None:
        for file in self.files.values():
            file.close()
        write_atomically(self.making / "meta.json", json.dumps(meta).encode())
        try:
            self.making.rename(self.folder)
        except OSError:  # another process was quicker with the same rows
            if not (self.folder / "meta.json").exists():
                raise

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, *_: object) -> None:
        """A row that was refused, or a quicker process, must not leave half a folder behind."""
        for file in self.files.values():
            file.close()
        shutil.rmtree(self.making, ignore_errors=True)


def store(table: Table, task: Task) -> Examples:
    """The table's rows on disk, checked and with targets. A second call with the same bytes reads what the first wrote."""
    what = [FORMAT, table.fingerprint, table.columns.__dict__, task.outcome, task.labels, sorted(task.numbers.items())]
    folder = paths.examples() / xxhash.xxh3_128_hexdigest(json.dumps(what, default=list).encode())
    if not (folder / "meta.json").exists():
        with _Columns(folder) as columns:
            _write(table, task, columns)
    rows = json.loads((folder / "meta.json").read_text())["rows"]
    return Examples(table.source, folder, np.arange(rows))


def _write(table: Table, task: Task, columns: _Columns) -> None:
    width = task.classes if task.outcome == "classes" else 1
    columns.add("text_offsets", np.zeros(1, np.int64))
    rows = end = labelled = 0
    order = _answer_order(table, task)
    iterator = table.rows()
    while chunk := list(islice(iterator, CHUNK)):
        pieces = [piece.encode() for row in chunk for piece in (row.text, row.pair or "")]
        ends = np.cumsum([len(piece) for piece in pieces]) + end
        where = [f"{table.source}:{row.line}" for row in chunk]
        known = [row.label is not None for row in chunk]
        nothing = [0.0] * width
        targets = [
            nothing if row.label is None else task.encode(row.label, at) for row, at in zip(chunk, where, strict=True)
        ]
        columns.add("texts", np.frombuffer(b"".join(pieces), np.uint8))
        columns.add("text_offsets", ends.astype(np.int64))
        columns.add("keys", np.array([key_of(row.text, row.pair) for row in chunk], np.int64))
        columns.add("targets", np.array(targets, np.float32))
        columns.add("labelled", np.array(known, np.bool_))
        if table.has_answers:
            columns.add(
                "answers", np.stack([_answer(row, order, task, at) for row, at in zip(chunk, where, strict=True)])
            )
        rows, end, labelled = rows + len(chunk), int(ends[-1]), labelled + sum(known)
    about = {"rows": rows, "labelled": labelled, "target_width": width, "pairs": table.columns.pair is not None}
    columns.finish({**about, "answers": table.has_answers})


def _answer_order(table: Table, task: Task) -> list[int] | None:
    """Where each class of the task stands among the columns of the file's answers."""
    if not table.has_answers or table.answer_labels is None:
        return None
    theirs = [label.lower() for label in table.answer_labels]
    if sorted(theirs) != sorted(label.lower() for label in task.labels):
        raise InputError(
            f"{table.source}: the answers are for {list(table.answer_labels)}, the classes are {list(task.labels)}; "
            "name the columns after the classes"
        )
    return [theirs.index(label.lower()) for label in task.labels]


def _answer(row: Row, order: list[int] | None, task: Task, where: str) -> np.ndarray:
    if row.answer is None:
        return np.full(task.classes, np.nan, np.float32)
    if len(row.answer) != task.classes:
        raise InputError(
            f"{where}: {len(row.answer)} numbers in the teacher's answer, but there are {task.classes} classes; write one for each"
        )
    return np.array([row.answer[i] for i in order] if order else row.answer, np.float32)


@dataclass(frozen=True)
class Tokens:
    """Token ids of all rows of an examples folder by one tokenizer, memory-mapped."""

    ids: np.ndarray  # flat int32
    segments: np.ndarray  # flat uint8: token type
    offsets: np.ndarray  # (rows + 1,)
    shortened: int  # texts that were longer than the model reads
    names: tuple[str, ...]  # arguments of forward that the tokenizer makes
    padding: int

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    described = (
        tokenizer.backend_tokenizer.to_str()
        if hasattr(tokenizer, "backend_tokenizer")
        else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    )
    # padding and truncation are settings of the last call, not of the vocabulary
    described = json.dumps(
        {k: v for k, v in json.loads(described).items() if k not in ("padding", "truncation")}, sort_keys=True
    )
    return xxhash.xxh3_128_hexdigest(described.encode() + repr(sorted(tokenizer.model_input_names)).encode())


def tokenise(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, length: int, progress: Callable[[int], None] | None = None
) -> Tokens:
    """All rows of the examples' folder as token ids, cut to `length`; done once per tokenizer and length."""
    folder = examples.folder / f"tokens-{tokenizer_fingerprint(tokenizer)}-{length}"
    if not (folder / "meta.json").exists():
        with _Columns(folder) as columns:
            _tokenise(examples, tokenizer, length, columns, progress)
    whole = replace(examples, folder=folder)
    meta = json.loads((folder / "meta.json").read_text())
    names = tuple(
        name for name in tokenizer.model_input_names if name in ("input_ids", "attention_mask", "token_type_ids")
    )
    padding = int(tokenizer.pad_token_id or 0)
    return Tokens(
        whole.column("ids", np.int32),
        whole.column("segments", np.uint8),
        whole.column("offsets", np.int64),
        meta["shortened"],
        names,
        padding,
    )


def _tokenise(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    columns: _Columns,
    progress: Callable[[int], None] | None,
) -> None:
    columns.add("offsets", np.zeros(1, np.int64))
    total, shortened, end = examples.meta["rows"], 0, 0
    for begin in range(0, total, CHUNK):
        texts, pairs = zip(*(examples.text(row) for row in range(begin, min(begin + CHUNK, total))), strict=True)
        second = list(pairs) if examples.meta["pairs"] else None
        encoded = tokenizer(
            list(texts),
            second,
            truncation=True,
            max_length=length,
            return_token_type_ids=True,
            return_attention_mask=False,
        )
        sizes = [len(ids) for ids in encoded["input_ids"]]
        columns.add("ids", np.concatenate([np.array(ids, np.int32) for ids in encoded["input_ids"]]))
        columns.add("segments", np.concatenate([np.array(types, np.uint8) for types in encoded["token_type_ids"]]))
        columns.add("offsets", np.cumsum(sizes) + end)
        shortened += sum(bool(one.overflowing) for one in encoded.encodings or ())
        end += sum(sizes)
        if progress:
            progress(len(sizes))
    columns.finish({"shortened": shortened})
