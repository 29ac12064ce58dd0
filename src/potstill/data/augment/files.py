"""Writes a file of rows with augmented copies behind them: the same columns, and in a copy the other values of its row."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from potstill.data.examples import Examples, store
from potstill.data.rows import Columns, open_table
from potstill.data.sources import locate
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.files import atomic_writer
from potstill.system.paths import expand_user, output_path

Values = dict[str, object]


def augment_file(
    file: str,
    out: str,
    make: Callable[[Examples], Examples],
    columns: Columns,
    keep_labels: bool = True,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Write the rows of a file, then the rows that `make` adds to them, in the order of their originals.

    Return how many there are of each. A copy has all other values of its original; without `keep_labels` no label.
    """
    path = output_path(out)
    check_output(file, path, overwrite)
    table = open_table(file, columns)
    if table.form != "text":
        raise InputError(f"{file}: these are {table.form}; only rows of one text or a pair of texts can be augmented")
    texts = [name for name in (table.columns.text, table.columns.pair) if name is not None]
    opened = locate(file)()
    # the teacher's answers are for the original text
    emptied = [*(table.answers.columns if table.answers else ()), *(() if keep_labels else table.columns.label_columns)]
    with interrupts.deferred(), file_writer(path, opened.names) as write:
        # labels are copied as they are written
        rows = store(replace(table, columns=replace(table.columns, label=None), answers=None))
        augmented = make(rows)
        for record in opened.records(opened.names):
            write(record.values)
        originals = enumerate(record.values for record in opened.records(opened.names))
        position, values = next(originals)
        for row in augmented.index[len(rows) :]:
            while position < augmented.origins[row]:
                position, values = next(originals)
            write(values | dict.fromkeys(emptied) | dict(zip(texts, augmented.text(row), strict=False)))
            interrupts.stop_if_asked()
    return len(rows), len(augmented) - len(rows)


def check_output(file: str, path: Path, overwrite: bool) -> None:
    if not path.name.removesuffix(".gz").endswith((".csv", ".tsv", ".jsonl")):
        raise InputError(f"--out {path}: the format is not clear; end it in .csv, .tsv or .jsonl, perhaps with .gz")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}; make it first")
    if path.exists() and expand_user(file).exists() and path.samefile(expand_user(file)):
        raise InputError(f"--out {path}: this is the file to read; write to another file")
    if path.exists() and not overwrite:
        raise InputError(f"--out {path}: the file exists; give another name, or --overwrite to replace it")


@contextmanager
def file_writer(path: Path, names: list[str]) -> Iterator[Callable[[Values], object]]:
    """Give a function that writes a record. The file takes its name when all records are written."""
    with atomic_writer(path) as raw:
        # without a time in the gzip header, the same rows make the same bytes
        packed: Any = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        file = io.TextIOWrapper(packed or raw, encoding="utf-8", newline="")
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            yield lambda values: file.write(as_json({name: values[name] for name in names if name in values}) + "\n")
        else:
            delimiter = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
            table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
            table.writerow(names)
            yield lambda values: table.writerow([as_cell(values.get(name)) for name in names])
        file.detach()  # flushes; without it, the wrapper would close the file below
        if packed:
            packed.close()


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def as_cell(value: object) -> str:
    """Return a value as the reader of tables reads it back: a list as JSON, None as an empty cell."""
    return value or "" if value is None or isinstance(value, str) else as_json(value)
