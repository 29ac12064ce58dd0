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
from typing import IO, Any

from potstill.data.examples import Examples, store
from potstill.data.rows import Columns, open_table
from potstill.data.sources import open_source
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.files import atomic_writer
from potstill.system.paths import expand_user, output_path

Values = dict[str, object]
ENDINGS = (".csv", ".tsv", ".jsonl")


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
    opened = open_source(file, lambda names: set(texts) <= set(names))
    # the teacher's answers are for the original text
    emptied = [*(table.answers.columns if table.answers else ()), *(() if keep_labels else table.columns.label_columns)]
    with interrupts.deferred(), file_writer(path, opened.names) as write:
        unlabelled = replace(table, columns=replace(table.columns, label=None), answers=None)
        rows = store(unlabelled)  # labels are copied as they are written
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
    if Path(path.name.removesuffix(".gz")).suffix not in ENDINGS:
        reason = "the format is not clear from the file's name"
        raise InputError(f"--out {path}: {reason}; end it in .csv, .tsv or .jsonl, perhaps with .gz")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}; make it first")
    if path.exists() and expand_user(file).exists() and path.samefile(expand_user(file)):
        raise InputError(f"--out {path}: this is the file to read; write to another file")
    if path.exists() and not overwrite:
        raise InputError(f"--out {path}: the file exists; give another name, or --overwrite to replace it")


@contextmanager
def file_writer(path: Path, names: list[str]) -> Iterator[Callable[[Values], None]]:
    """Give a function that writes a record. The file takes its name when all records are written."""
    with atomic_writer(path) as raw:
        # without a time in the gzip header, the same rows make the same bytes
        packed: Any = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        file = io.TextIOWrapper(packed or raw, encoding="utf-8", newline="")
        ending = Path(path.name.removesuffix(".gz")).suffix
        yield json_writer(file, names) if ending == ".jsonl" else table_writer(file, names, ending)
        file.detach()  # flushes; without it, the wrapper would close the file below
        if packed:
            packed.close()


def json_writer(file: IO[str], names: list[str]) -> Callable[[Values], None]:
    def write(values: Values) -> None:
        ordered = {name: values[name] for name in names if name in values}
        file.write(json.dumps(ordered, ensure_ascii=False, default=str) + "\n")

    return write


def table_writer(file: IO[str], names: list[str], ending: str) -> Callable[[Values], None]:
    writer = csv.writer(file, delimiter="\t" if ending == ".tsv" else ",", lineterminator="\n")
    writer.writerow(names)
    return lambda values: writer.writerow([as_cell(values.get(name)) for name in names])


def as_cell(value: object) -> str:
    """Return a value as the reader of tables reads it back: a list as JSON, None as an empty cell."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
