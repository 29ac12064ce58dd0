"""A file of rows with augmented copies behind them: the same columns, the copies with the other values of their row."""

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

from potstill.data.derived import origins
from potstill.data.examples import Examples, store
from potstill.data.formats.text import PLACE
from potstill.data.rows import Columns, open_table
from potstill.data.sources import open_source
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.files import replaced
from potstill.system.paths import given, to_write

Record = dict[str, object]
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
    place = refuse_place(file, to_write(out), overwrite)
    table = open_table(file, columns)
    if table.form != "text":
        raise InputError(f"{file}: these are {table.form}; only rows of one text or a pair of texts can be augmented")
    texts = [name for name in (table.columns.text, table.columns.pair) if name is not None]
    opened = open_source(file, lambda names: set(texts) <= set(names))
    answers = (
        table.answers.columns if table.answers else ()
    )  # what a teacher said of a row it did not say of its copies
    emptied = dict.fromkeys([*answers, *(() if keep_labels else table.columns.label_columns)])
    with interrupts.watched(), written(place, opened.names) as write:
        # labels are copied as they are written, and read by nobody
        plain = replace(table, columns=replace(table.columns, label=None), answers=None)
        rows = store(plain)
        made = make(rows)
        for _, record in opened.records(opened.names):
            write(record)
        owners = origins(made)
        records = enumerate(record for _, record in opened.records(opened.names))
        at, record = next(records)
        for row in made.index[len(rows) :]:
            while at < owners[row]:
                at, record = next(records)
            write(record | emptied | dict(zip(texts, made.text(row), strict=False)))
            if asked := interrupts.asked():
                raise interrupts.Interrupted(asked)
    return len(rows), len(made) - len(rows)


def refuse_place(file: str, place: Path, overwrite: bool) -> Path:
    if Path(place.name.removesuffix(".gz")).suffix not in ENDINGS:
        raise InputError(
            f"--out {place}: the name does not say what to write; end it in .csv, .tsv, .jsonl, or with .gz"
        )
    if not place.parent.is_dir():
        raise InputError(f"--out {place}: there is no folder {place.parent}; make it first")
    if place.exists() and given(file).exists() and place.samefile(given(file)):
        raise InputError(f"--out {place}: these are the rows to read; write to another file")
    if place.exists() and not overwrite:
        raise InputError(f"--out {place}: exists already; give another name, or --overwrite to replace it")
    return place


@contextmanager
def written(place: Path, names: list[str]) -> Iterator[Callable[[Record], None]]:
    """A function that writes a record; the file takes its name when all are written."""
    names = [name for name in names if name != PLACE]
    with replaced(place) as raw:
        # without a time in its head, the same rows make the same bytes
        packed: Any = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if place.suffix == ".gz" else None
        file = io.TextIOWrapper(packed or raw, encoding="utf-8", newline="")
        ending = Path(place.name.removesuffix(".gz")).suffix
        yield json_writer(file, names) if ending == ".jsonl" else table_writer(file, names, ending)
        file.detach()  # flushed; without it, the wrapper would close what is under it
        if packed:
            packed.close()


def json_writer(file: IO[str], names: list[str]) -> Callable[[Record], None]:
    def write(record: Record) -> None:
        values = {name: record[name] for name in names if name in record}
        file.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")

    return write


def table_writer(file: IO[str], names: list[str], ending: str) -> Callable[[Record], None]:
    writer = csv.writer(file, delimiter="\t" if ending == ".tsv" else ",", lineterminator="\n")
    writer.writerow(names)
    return lambda record: writer.writerow([cell(record.get(name)) for name in names])


def cell(value: object) -> str:
    """As the reader of tables reads it back: a list as JSON, no value as nothing."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
