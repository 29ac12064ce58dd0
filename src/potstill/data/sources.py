"""Files, folders and data sets as records: which columns they have, and their values as often as wanted."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from potstill.data.columns import TOGETHER
from potstill.data.formats import corpora, images, parallel
from potstill.data.formats.text import (
    EXPANDED,
    EXPANSION,
    HARMLESS,
    LONGEST,
    PLACE,
    Delimited,
    Records,
    json_names,
    json_records,
    line_records,
    short_repr,
)
from potstill.errors import InputError
from potstill.system.files import xxh3_of

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::([\w.-]+))?:([\w.-]+)")  # NAME[:CONFIG]:SPLIT
AT_ONCE = 256  # rows of Parquet or a data set turned into Python at a time


class Opened(NamedTuple):
    """A file or data set whose column names are known, but not yet what they hold."""

    names: list[str]
    records: Callable[[Sequence[str]], Records]  # only these columns need to be read
    kind: str  # how the bytes are read
    fingerprint: str = ""  # of the bytes before they were read
    digest: Callable[[], str] = str  # the same as they are now
    hint: str = ""  # what to say where no column is known by its name
    images: Mapping[str, images.Shape] = {}  # columns that hold images, which must be read one at a time


class Location(NamedTuple):
    """Where rows are. Nothing is opened yet."""

    kind: Literal["folder", "file", "two files", "hub"]
    paths: tuple[Path, ...] = ()
    split: str | None = None  # of a folder that holds several
    hub: tuple[str, str | None, str] = ("", None, "")  # name, configuration, split


def locate(source: str) -> Location:
    """What `source` means: a folder, FOLDER:SPLIT, a file, FIRST,SECOND or NAME[:CONFIG]:SPLIT of the hub; an error if it is missing."""
    path = Path(os.path.expanduser(source))  # an unknown ~user stays as it is
    if path.is_dir():
        return Location("folder", (path,))
    if path.is_file():
        return Location("file", (path,))
    if path.exists():
        raise InputError(f"{source}: this is not a regular file; write the rows into a file first")
    name, _, split = source.rpartition(":")
    if name and (folder := Path(os.path.expanduser(name))).is_dir():
        return Location("folder", (folder,), split)
    if both := parallel.two_files(source):
        return Location("two files", both)
    if hub := HUB_NAME.fullmatch(source):
        return Location("hub", hub=(hub[1], hub[2], hub[3]))
    raise InputError(f"{source}: there is no such file; {similar_file(path)}")


def open_source(source: str, knows: Callable[[list[str]], bool]) -> Opened:
    """`knows` tells whether column names make sense, for tables that are not called what they are."""
    kind, paths, split, hub = locate(source)
    if kind == "folder":
        return open_folder(paths[0], split, source)
    if kind == "file":
        return open_file(paths[0], source, knows)
    if kind == "two files":
        first, second = paths
        digest = partial(fingerprint, first, second)
        return Opened(parallel.NAMES, lambda _: parallel.line_pairs(first, second), "two files", digest(), digest)
    return open_hub(*hub, source)


def open_file(path: Path, source: str, knows: Callable[[list[str]], bool]) -> Opened:
    beside = images.labels_beside(path) if images.is_idx(path.name) else None
    digest = partial(fingerprint, path, *([beside] if beside else []))
    before = digest()
    return open_by_name(path, source, knows)._replace(fingerprint=before, digest=digest)


def open_by_name(path: Path, source: str, knows: Callable[[list[str]], bool]) -> Opened:
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in (".csv", ".tsv"):
        table = Delimited(path, source, "," if ending == ".csv" else "\t", knows)
        hint = " (if the first line is a row already, write one above it such as text,label)"
        if pixels := images.pixel_columns(table.names):
            return open_pixel_table(table, *pixels, hint)
        return Opened(table.names, lambda _: table.records(), table.kind, hint=hint)
    if ending == ".json" and corpora.is_squad(path):
        return Opened(corpora.SQUAD_NAMES, lambda _: corpora.squad_records(path, source), "squad")
    if ending in (".jsonl", ".ndjson", ".json") or (ending == ".txt" and corpora.is_race(path)):
        return Opened(json_names(path, source), lambda _: json_records(path, source), "json lines")
    if ending in (".txt", ".tokens"):  # the latter as WikiText is published
        return Opened(["text"], lambda _: line_records(path, source), "lines")
    if corpora.is_conll(path.name):
        sentences = corpora.Conll(path, source)
        return Opened(sentences.names, lambda _: sentences.records(), "conll")
    if ending == ".parquet":
        return open_parquet(path, source)
    if images.is_idx(path.name):
        pair = images.Idx(path, source)
        return Opened(pair.names, lambda _: pair.records(), "idx", images={"images": pair.shape})
    if ending == ".npz":
        arrays = images.Npz(path, source)
        return Opened(arrays.names, arrays.records, "npz", images=arrays.shapes)
    known = (
        ".csv, .tsv, .txt, .tokens, .jsonl, .ndjson, .json, .conll (all also with .gz), .parquet, -idx3-ubyte or .npz"
    )
    raise InputError(f"{source}: the name does not say what the file is; rename it to end in {known}")


def open_pixel_table(table: Delimited, columns: list[str], shape: images.Shape, hint: str) -> Opened:
    names = [name for name in table.names if name not in set(columns)]
    return Opened(
        [*names, images.PIXELS],
        lambda _: images.joined_pixels(table.records(), columns, table.source),
        f"pixels in {table.kind}",
        hint=hint,
        images={images.PIXELS: shape},
    )


def race_apart(opened: Opened, source: str) -> Opened:
    """A record per question, if a record holds a passage of RACE with lists of questions and options."""
    lists = [name for name in corpora.RACE_LISTS if name in opened.names]
    if not set(opened.names) >= corpora.RACE_NAMES:
        return opened
    _, first = next(opened.records(lists), (0, {}))
    if not isinstance(first.get("questions"), list):
        return opened

    def records(needed: Sequence[str]) -> Records:
        return corpora.questions_apart(opened.records(list(dict.fromkeys([*needed, *lists]))), source)

    return opened._replace(records=records)


def languages_apart(opened: Opened, source: str) -> tuple[Opened, list[str]]:
    """A column per language, if one column holds them together, as in Hugging Face's data sets; and which they are."""
    column = next((name for name in opened.names if name.lower() == TOGETHER), "")
    _, first = next(opened.records([column]), (0, {})) if column else (0, {})
    together = first.get(column)
    if not isinstance(together, dict):
        return opened, []
    others = [name for name in opened.names if name != column]

    def records(needed: Sequence[str]) -> Records:
        for line, record in opened.records([*(name for name in needed if name in others), column]):
            texts = record.get(column)
            if not isinstance(texts, dict):
                where = str(record.get(PLACE, f"{source}:{line}"))
                reason = f"{column!r} is {short_repr(texts)}, not a text per language"
                raise InputError(f'{where}: {reason}; write {{"en": "...", "de": "..."}}, or delete the row')
            yield line, record | texts

    return opened._replace(names=[*together, *others], records=records), list(together)


def fingerprint(*paths: Path) -> str:
    """Of the bytes of each."""
    return "".join(xxh3_of(path) for path in paths)


def similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either; check the path"
    close = difflib.get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {str(path.parent / close[0])!r}?"
    return "check the path (a data set of the Hugging Face Hub is written NAME:SPLIT)"


def open_parquet(path: Path, source: str) -> Opened:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    texts: list[str] = []
    allowed = min(EXPANDED, max(HARMLESS, EXPANSION * path.stat().st_size))
    bomb = (
        f"the file grows to more than {allowed:,} bytes, like a decompression bomb; unpack it yourself if you trust it"
    )

    @contextmanager
    def opened() -> Iterator[Any]:
        try:  # a buffer, so that a row group of any size is read bit by bit; a text that is repeated stays one in memory
            with ParquetFile(path, buffer_size=2**20, pre_buffer=False, read_dictionary=texts) as file:
                yield file
        except (pyarrow.ArrowException, OSError, ValueError, AttributeError, OverflowError) as error:
            reason = f"this is not a Parquet file, or a damaged one ({str(error)[:200]})"
            raise InputError(f"{source}:1: {reason}; write it again, or rename it to what it is") from None

    def records(needed: Sequence[str]) -> Records:
        with opened() as file:
            batches = in_pieces(file.iter_batches(AT_ONCE, columns=list(needed)), allowed, f"{source}:1: {bomb}")
            yield from arrow_records(batches, features, source)

    with opened() as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > allowed:
            raise InputError(f"{source}:1: {bomb}")
        # of a long column, whose different texts would all be held, only what is read is held
        long = long_columns(file, groups) if sum(group.total_byte_size for group in groups) > LONGEST else set()
        plain = [one.name for one in file.schema_arrow if pyarrow.types.is_string(one.type)]
        texts += [name for name in plain if name not in long]
        names, metadata = list(file.schema_arrow.names), file.schema_arrow.metadata or {}
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features")
    return Opened(names, records, "parquet")


def long_columns(file: Any, groups: Sequence[Any]) -> set[str]:
    """Columns with a chunk that is too long to be held. A group's first row is read before: what is damaged is told
    there, while asking a damaged chunk for its size ends the process (pyarrow 21: terminate called …)."""
    found = set()
    for number, group in enumerate(groups):
        next(file.iter_batches(1, row_groups=[number]), None)
        chunks = [group.column(place) for place in range(group.num_columns)]
        found |= {chunk.path_in_schema for chunk in chunks if chunk.total_uncompressed_size > LONGEST}
    return found


def in_pieces(batches: Iterable[Any], allowed: int, refusal: str) -> Iterator[Any]:
    """Batches of texts that are repeated, cut so that a piece is small when each row has its own."""
    from pyarrow import compute, types

    expanded = 0
    for batch in batches:
        size = batch.nbytes
        for column in batch.columns:
            if types.is_dictionary(column.type) and types.is_string(column.type.value_type):
                lengths = compute.binary_length(column.dictionary)
                size += compute.sum(lengths.take(column.indices)).as_py() or 0
        expanded += size
        if expanded > allowed:
            raise InputError(refusal)
        rows = max(1, batch.num_rows * LONGEST // max(size, LONGEST))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)


def arrow_records(batches: Iterable[Any], features: object, source: str) -> Records:
    """Records of Arrow tables; a number that stands for a class becomes the class's name, -1 no label."""
    classes = class_names(features)
    number = 0
    for batch in batches:
        columns = batch.to_pydict()
        for name in columns.keys() & classes.keys():
            values = enumerate(columns[name], number + 1)
            columns[name] = [named(value, classes[name], f"{source}:{at}") for at, value in values]
        for cells in zip(*columns.values(), strict=True):
            number += 1
            yield number, dict(zip(columns, cells, strict=True))


def class_names(features: object) -> dict[str, list[str]]:
    """Names of the classes by column, of features as `datasets` writes them."""
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        while isinstance(feature, dict) and "feature" in feature:  # a list of classes
            feature = feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            found[column] = feature["names"]
    return found


def named(value: Any, names: list[str], where: str) -> object:
    if isinstance(value, list):
        return [named(part, names, where) for part in value]
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise InputError(f"{where}: there is no class {value}, the classes are {short_repr(names)}; mend the label")
    return names[value]


def open_data_set(data: Any, source: str) -> Opened:
    features = data.features.to_dict()

    def records(needed: Sequence[str]) -> Records:
        batches = data.select_columns(list(needed)).with_format("arrow").iter(AT_ONCE)
        return arrow_records(batches, features, source)

    return Opened(list(data.column_names), records, "data set", data._fingerprint, lambda: str(data._fingerprint))


def open_folder(folder: Path, split: str | None, source: str) -> Opened:
    if files := corpora.race_files(folder):
        if split is not None:
            raise InputError(f"{source}: this is a folder of .txt files, which has no splits; write {folder / split}")
        digest = partial(corpora.race_fingerprint, folder, files)
        before = digest()
        names = list(corpora.race_object(files[0]))
        return Opened(names, lambda _: corpora.race_records(files), "race", before, digest)
    import datasets

    try:
        data = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever Arrow, JSON and the file system raise: the folder is not a whole data set
        reason = f"the folder is not a data set saved by save_to_disk ({str(error)[:200]})"
        raise InputError(f"{source}: {reason}; name a file in it") from None
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            todo = " or ".join(f"{folder}:{name}" for name in data)
            raise InputError(f"{source}: the data set has several splits; write {todo}")
        data = data[split]
    elif split is not None:
        raise InputError(f"{source}: the data set has no splits; write {folder}")
    return open_data_set(data, source)


def open_hub(name: str, config: str | None, split: str, source: str) -> Opened:
    """A data set of the Hub or of its local cache. Nothing of it is executed: `datasets` 4 and later run no scripts."""
    import datasets

    try:
        return open_data_set(datasets.load_dataset(name, config, split=split), source)
    except Exception as error:  # no network, no such data set or split: each library below raises its own
        reason = f"there is no such file, and the Hugging Face Hub gave no such data set ({str(error)[:300]})"
        todo = "check the name and the network, or use a local file such as train.csv"
        raise InputError(f"{source}: {reason}; {todo}") from None
