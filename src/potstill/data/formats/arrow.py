"""Parquet files, and data sets of the Hugging Face Hub or saved by `datasets`.

pyarrow and datasets are imported where they are used: reading a text file needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potstill.data.formats.reading import (
    BOMB,
    LONGEST,
    FileFormat,
    Opened,
    Record,
    Records,
    expansion_limit,
    short_repr,
)
from potstill.errors import InputError

ROWS_AT_ONCE = 256  # rows of Parquet or a data set that become Python objects together


def open_parquet(path: Path, source: str) -> Opened:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    repeated_texts: list[str] = []
    limit = expansion_limit(path)
    bomb = f"{source}:1: the file expands to more than {limit:,} bytes, {BOMB}"

    @contextmanager
    def opened() -> Iterator[Any]:
        try:  # with a buffer a row group of any size is read in parts; a text that repeats is held once in memory
            with ParquetFile(path, buffer_size=2**20, pre_buffer=False, read_dictionary=repeated_texts) as file:
                yield file
        except (pyarrow.ArrowException, OSError, ValueError, AttributeError, OverflowError) as error:
            reason = f"this is not a Parquet file, or it is damaged ({str(error)[:200]})"
            raise InputError(f"{source}:1: {reason}; write it again, or correct its name") from None

    with opened() as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        size = sum(group.total_byte_size for group in groups)
        if size > limit:
            raise InputError(bomb)
        # the dictionary of a long column would hold all its different texts
        long = long_columns(file, groups) if size > LONGEST else set()
        schema = file.schema_arrow
        strings = [field.name for field in schema if pyarrow.types.is_string(field.type)]
        repeated_texts += [name for name in strings if name not in long]
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features")

    def records(needed: Sequence[str]) -> Records:
        with opened() as file:
            batches = small_batches(file.iter_batches(ROWS_AT_ONCE, columns=list(needed)), limit, bomb)
            yield from arrow_records(batches, features, source)

    return Opened(list(schema.names), records, "parquet")


FORMATS = (FileFormat((".parquet",), open_parquet),)


def long_columns(file: Any, groups: Sequence[Any]) -> set[str]:
    """Return the columns with a chunk that is too long to be held in memory.

    The first row of each group is read before: that reports a damaged chunk, while asking it for its size ends the
    process (pyarrow 21: terminate called …).
    """
    names = set()
    for number, group in enumerate(groups):
        next(file.iter_batches(1, row_groups=[number]), None)
        chunks = [group.column(index) for index in range(group.num_columns)]
        names |= {chunk.path_in_schema for chunk in chunks if chunk.total_uncompressed_size > LONGEST}
    return names


def small_batches(batches: Iterable[Any], limit: int, refusal: str) -> Iterator[Any]:
    """Cut batches of repeated texts so that they are small when each row has its own text."""
    from pyarrow import compute, types

    expanded = 0
    for batch in batches:
        size = batch.nbytes
        for column in batch.columns:
            if types.is_dictionary(column.type) and types.is_string(column.type.value_type):
                lengths = compute.binary_length(column.dictionary)
                size += compute.sum(lengths.take(column.indices)).as_py() or 0
        expanded += size
        if expanded > limit:
            raise InputError(refusal)
        rows = max(1, batch.num_rows * LONGEST // max(size, LONGEST))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)


def arrow_records(batches: Iterable[Any], features: object, source: str) -> Records:
    """Yield records of Arrow tables; the number of a class becomes the class's name, -1 becomes None."""
    classes = class_names(features)
    number = 0
    for batch in batches:
        columns = batch.to_pydict()
        for name in columns.keys() & classes.keys():
            values = enumerate(columns[name], number + 1)
            columns[name] = [class_name(value, classes[name], f"{source}:{row}") for row, value in values]
        for cells in zip(*columns.values(), strict=True):
            number += 1
            yield Record(number, dict(zip(columns, cells, strict=True)))


def class_names(features: object) -> dict[str, list[str]]:
    """Return the names of the classes by column, from features as `datasets` writes them."""
    names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        while isinstance(feature, dict) and "feature" in feature:  # a list of classes
            feature = feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            names[column] = feature["names"]
    return names


def class_name(value: Any, names: list[str], where: str) -> object:
    if isinstance(value, list):
        return [class_name(part, names, where) for part in value]
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise InputError(f"{where}: there is no class {value}; correct the label, the classes are {short_repr(names)}")
    return names[value]


def open_saved_data_set(folder: Path, split: str | None, source: str) -> Opened:
    """Open a folder that `Dataset.save_to_disk` wrote."""
    import datasets

    try:
        data = datasets.load_from_disk(str(folder))
    except Exception as error:  # Arrow, JSON and the file system raise their own: the folder is not a whole data set
        reason = f"the folder is not a data set saved by save_to_disk ({str(error)[:200]})"
        raise InputError(f"{source}: {reason}; give a file in it") from None
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            todo = " or ".join(f"{folder}:{name}" for name in data)
            raise InputError(f"{source}: the data set has several splits; write {todo}")
        data = data[split]
    elif split is not None:
        raise InputError(f"{source}: the data set has no splits; write {folder}")
    return open_data_set(data, source)


def open_hub_data_set(name: str, config: str | None, split: str, source: str) -> Opened:
    """Open a data set of the Hub or of its local cache. `datasets` 4 and later runs no code of a data set."""
    import datasets

    try:
        return open_data_set(datasets.load_dataset(name, config, split=split), source)
    except Exception as error:  # no network, no such data set or split: each library below raises its own
        reason = f"there is no such file, and no such data set on the Hugging Face Hub ({str(error)[:300]})"
        raise InputError(f"{source}: {reason}; check name and network, or use a local file such as train.csv") from None


def open_data_set(data: Any, source: str) -> Opened:
    features = data.features.to_dict()

    def records(needed: Sequence[str]) -> Records:
        batches = data.select_columns(list(needed)).with_format("arrow").iter(ROWS_AT_ONCE)
        return arrow_records(batches, features, source)

    return Opened(list(data.column_names), records, "data set", data._fingerprint, lambda: str(data._fingerprint))
