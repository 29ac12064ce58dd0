"""Rows of text, label and perhaps a teacher's answer, out of text files, Parquet and Hugging Face data sets.

Strict: "NA" and "null" are texts, nothing is skipped or repaired in silence, an error names file and line. Streaming:
a file is never held in memory, whatever its length. Only what cannot be text is replaced: NUL and lone surrogates.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from potstill.delimited import Delimited, Records, json_names, json_records, line_records, speakable
from potstill.errors import InputError

# fmt: off
# usual names, in the order in which they are looked for
PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
         ("text1", "text2"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text_pair"),
         ("query", "passage"), ("query", "document"))
TEXTS = ("text", "sentence", "review", "content", "comment", "body", "utterance", "question", "title", "tweet",
         "message", "document")
LABELS = ("label", "labels", "score", "sentiment", "class", "category", "target", "intent", "topic", "rating",
          "gold_label")
# fmt: on
ANSWER_LISTS = (("logits", False), ("probabilities", True), ("probs", True))  # name, are they probabilities
ANSWER_PREFIXES = (("logit_", False), ("probability_", True), ("prob_", True))
HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::([\w.-]+))?:([\w.-]+)")  # NAME[:CONFIG]:SPLIT
AT_ONCE = 256  # rows of Parquet or a data set turned into Python at a time


@dataclass(frozen=True)
class Columns:
    """Where text, second text and label stand."""

    text: str | None = None  # None: guessed by its usual name
    pair: str | None = None
    label: str | tuple[str, ...] | None = None  # several: columns of 0 and 1, one per label
    separator: str | None = None  # a label text holds several labels, separated by this


class Row(NamedTuple):
    line: int  # 1-based, on which the row begins; Parquet and data sets: number of the record
    text: str
    pair: str | None
    label: str | tuple[str, ...] | None  # as written, in canonical text; None: unlabelled
    answer: tuple[float, ...] | None  # the teacher's logits (of probabilities their logarithm), (classes,)


class Answers(NamedTuple):
    columns: tuple[str, ...]
    are_probabilities: bool
    labels: tuple[str, ...] | None  # one per column; None: the one column holds a list


@dataclass(frozen=True)
class Table:
    """Rows to be read as often as wanted, and what is known of them beforehand."""

    source: str  # as the user gave it
    columns: Columns  # what was guessed is filled in; pair and label are None where there are none
    answers: Answers | None = field(repr=False)
    fingerprint: str  # xxh3-128 of the file's bytes; data sets: their own
    records: Callable[[], Records] = field(repr=False)

    @property
    def has_answers(self) -> bool:
        return self.answers is not None

    @property
    def answer_labels(self) -> tuple[str, ...] | None:
        """Classes the answers are for, if columns name them; None: in the order of the labels."""
        return self.answers.labels if self.answers else None

    def rows(self) -> Iterator[Row]:
        text, pair, classes = self.columns.text, self.columns.pair, 0
        assert text is not None  # open_table resolved it
        for line, record in self.records():
            where = f"{self.source}:{line}"
            answer = read_answer(record, self.answers, where) if self.answers else None
            if answer is not None:
                classes = classes or len(answer)
                if len(answer) != classes:
                    reason = f"the answer has {len(answer)} numbers, earlier ones have {classes}"
                    raise InputError(f"{where}: {reason}; write one number per class in every row")
            second = None if pair is None else read_text(record, pair, where)
            yield Row(line, read_text(record, text, where), second, read_label(record, self.columns, where), answer)


class Opened(NamedTuple):
    """A file or data set whose column names are known, but not yet what they hold."""

    names: list[str]
    records: Callable[[Sequence[str]], Records]  # only these columns need to be read
    fingerprint: str
    hint: str = ""  # what to say where no column is known by its name


def open_table(source: str | Path, columns: Columns = Columns(), need_label: bool = False) -> Table:  # noqa: B008 (frozen)
    """A file, a folder of `datasets.save_to_disk` (DIR or DIR:SPLIT) or a data set of the Hub (NAME[:CONFIG]:SPLIT)."""
    source = str(source)
    try:
        opened = open_source(source, columns)
    except OSError as error:  # no permission, a name too long for the file system
        raise InputError(f"{source}: cannot be read ({error.strerror}); check the path and its permissions") from None
    resolved, answers = resolve(opened.names, columns, need_label, f"{source}:1", opened.hint)
    labels = resolved.label if isinstance(resolved.label, tuple) else (resolved.label,)
    wanted = (resolved.text, resolved.pair, *labels, *(answers.columns if answers else ()))
    needed = [name for name in dict.fromkeys(wanted) if name is not None]
    if next(opened.records(needed), None) is None:
        raise InputError(f"{source}:1: there are no rows; write at least one")
    return Table(source, resolved, answers, opened.fingerprint, lambda: opened.records(needed))


def open_source(source: str, columns: Columns) -> Opened:
    path = Path(os.path.expanduser(source))  # leaves an unknown ~user as it is
    folder, _, split = source.rpartition(":")
    if path.is_dir():
        return open_folder(path, None, source)
    if path.is_file():
        return open_file(path, source, columns)
    if path.exists():
        raise InputError(f"{source}: this is not a regular file; write the rows into a file first")
    if folder and Path(os.path.expanduser(folder)).is_dir():
        return open_folder(Path(os.path.expanduser(folder)), split, source)
    if name := HUB_NAME.fullmatch(source):
        return open_hub(name[1], name[2], name[3], source)
    raise InputError(f"{source}: there is no such file; {similar_file(path)}")


def open_file(path: Path, source: str, columns: Columns) -> Opened:
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in (".csv", ".tsv"):

        def knows(names: list[str]) -> bool:
            try:
                return bool(resolve(names, columns, False, ""))
            except InputError:
                return False

        table = Delimited(path, source, "," if ending == ".csv" else "\t", knows)
        hint = " (if the first line is a row already, write one above it such as text,label)"
        return Opened(table.names, lambda _: table.records(), fingerprint(path), hint)
    if ending == ".txt":
        return Opened(["text"], lambda _: line_records(path, source), fingerprint(path))
    if ending in (".jsonl", ".ndjson", ".json"):
        return Opened(json_names(path, source), lambda _: json_records(path, source), fingerprint(path))
    if ending == ".parquet":
        return open_parquet(path, source)
    known = ".csv, .tsv, .txt, .jsonl, .ndjson, .json or .parquet (all but the last also with .gz)"
    raise InputError(f"{source}: the name does not say what the file is; rename it to end in {known}")


def fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())


def similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either; check the path"
    close = difflib.get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {str(path.parent / close[0])!r}?"
    return "check the path (a data set of the Hugging Face Hub is written NAME:SPLIT)"


def resolve(
    names: Sequence[str], wanted: Columns, need_label: bool, where: str, hint: str = ""
) -> tuple[Columns, Answers | None]:
    """Fill in by their usual names what the user did not say; the teacher's answers are looked for in what is left."""
    there = f"the columns are {', '.join(repr(name[:60]) for name in names[:20])}{' ...' if len(names) > 20 else ''}"
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InputError(f"{where}: two columns are called {twice!r}; give each column its own name")
    labels = (wanted.label,) if isinstance(wanted.label, str) else wanted.label or ()
    asked = [("--text", wanted.text), ("--pair", wanted.pair), *(("--label", label) for label in labels)]
    for flag, name in asked:
        if name is not None and name not in names:
            close = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
            todo = f"did you mean {flag} {close[0]}?" if close else f"write {flag} and one of these"
            raise InputError(f"{where}: there is no column {name!r}, {there}; {todo}{'' if close else hint}")
    if wanted.pair is not None and wanted.text is None:
        raise InputError(f"{where}: --pair names the second text, but the first is not named; add --text NAME")
    known = {name.lower(): name for name in reversed(names) if name not in labels}
    known |= {name: name for name in names if name in known and name not in labels}  # "text" before "Text"
    text, pair = wanted.text, wanted.pair
    if text is None:
        pairs = ((known[first], known[second]) for first, second in PAIRS if first in known and second in known)
        text, pair = next(pairs, (next((known[name] for name in TEXTS if name in known), None), None))
    if text is None:
        raise InputError(f"{where}: no column has a usual name for text, {there}; say which it is by --text NAME{hint}")
    label = wanted.label or next((known[n] for n in LABELS if n in known and known[n] not in (text, pair)), None)
    if need_label and not label:
        raise InputError(f"{where}: no column has a usual name for labels, {there}; say which it is by --label NAME")
    used = {text, pair, label, *labels}
    return replace(wanted, text=text, pair=pair, label=label or None), find_answers([n for n in names if n not in used])


def find_answers(names: Sequence[str]) -> Answers | None:
    for usual, are_probabilities in ANSWER_LISTS:
        for name in names:
            if name.lower() == usual:
                return Answers((name,), are_probabilities, None)
    for prefix, are_probabilities in ANSWER_PREFIXES:
        columns = tuple(name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix))
        if columns:
            return Answers(columns, are_probabilities, tuple(name[len(prefix) :].strip() for name in columns))
    return None


def shown(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."


def read_text(record: dict[str, object], column: str, where: str) -> str:
    value = record.get(column)
    if isinstance(value, str):
        return speakable(value)
    if column not in record:
        raise InputError(f"{where}: there is no {column!r}; write the text, or delete the row")
    raise InputError(f"{where}: {column!r} is {shown(value)}, not a text; write it in quotes, or delete the row")


def canonical(value: object, where: str) -> str:
    """1, 1.0 and "1" are one label; the letters of a text stay as they are, without the space around them."""
    if isinstance(value, str):
        return speakable(value.strip())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise InputError(f"{where}: {shown(value)} is not a label; write a text or a number, or leave it empty")


def read_label(record: dict[str, object], columns: Columns, where: str) -> str | tuple[str, ...] | None:
    if columns.label is None:
        return None
    if isinstance(columns.label, tuple):
        return marked_labels(record, columns.label, where)
    value = record.get(columns.label)
    if isinstance(value, str) and columns.separator and value.strip():
        return tuple(canonical(part, where) for part in value.split(columns.separator) if part.strip())
    if isinstance(value, list):
        labels = tuple(canonical(part, where) for part in value)
        if "" in labels:
            raise InputError(f"{where}: one of the labels {shown(value)} is empty; write its name, or leave it out")
        return labels
    return None if value is None else canonical(value, where) or None


def marked_labels(record: dict[str, object], names: tuple[str, ...], where: str) -> tuple[str, ...] | None:
    """Names of the columns that hold 1; None where all are empty."""
    marks = [canonical("" if (value := record.get(name)) is None else value, where).lower() for name in names]
    if not any(marks):
        return None
    for name, mark in zip(names, marks, strict=True):
        if mark not in ("0", "1", "false", "true"):
            raise InputError(f"{where}: {name!r} is {shown(record.get(name))}; a column per label holds 0 or 1")
    return tuple(name for name, mark in zip(names, marks, strict=True) if mark in ("1", "true"))


def read_answer(record: dict[str, object], answers: Answers, where: str) -> tuple[float, ...] | None:
    """The teacher's logits; of probabilities their logarithm, whose softmax gives them back."""
    cells = [record.get(name) for name in answers.columns]
    if all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells):
        return None
    try:
        parts = cells if answers.labels else json.loads(cells[0]) if isinstance(cells[0], str) else cells[0]
        numbers = tuple(map(finite, parts)) if isinstance(parts, list) else ()
        if not numbers:
            raise ValueError
    except (ValueError, TypeError, OverflowError, RecursionError):
        todo = "a list of finite numbers, such as [0.1, -2.3]" if answers.labels is None else "a finite number in each"
        found = shown(cells[0] if len(cells) == 1 else cells)
        raise InputError(f"{where}: {found} in {', '.join(answers.columns)[:200]} is no answer; write {todo}") from None
    if not answers.are_probabilities:
        return numbers
    if min(numbers) < 0 or abs(math.fsum(numbers) - 1) > 1e-3:
        reason = f"the probabilities {shown(list(numbers))} are below 0 or do not sum to 1"
        raise InputError(f"{where}: {reason}; mend them, or call the column logits if that is what they are")
    return tuple(math.log(max(number, 1e-12)) for number in numbers)


def finite(cell: Any) -> float:
    if isinstance(cell, bool) or not math.isfinite(float(cell)):
        raise ValueError
    return float(cell)


def open_parquet(path: Path, source: str) -> Opened:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    @contextmanager
    def opened() -> Iterator[Any]:
        try:  # a buffer, so that a row group of any size is read bit by bit
            with ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
                yield file
        except (pyarrow.ArrowException, OSError, ValueError, AttributeError) as error:
            reason = f"this is not a Parquet file, or a damaged one ({str(error)[:200]})"
            raise InputError(f"{source}:1: {reason}; write it again, or rename it to what it is") from None

    def records(needed: Sequence[str]) -> Records:
        with opened() as file:
            yield from arrow_records(file.iter_batches(AT_ONCE, columns=list(needed)), features, source)

    with opened() as file:
        names, metadata = list(file.schema_arrow.names), file.schema_arrow.metadata or {}
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features")
    return Opened(names, records, fingerprint(path))


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
        raise InputError(f"{where}: there is no class {value}, the classes are {shown(names)}; mend the label")
    return names[value]


def open_data_set(data: Any, source: str) -> Opened:
    features = data.features.to_dict()

    def records(needed: Sequence[str]) -> Records:
        batches = data.select_columns(list(needed)).with_format("arrow").iter(AT_ONCE)
        return arrow_records(batches, features, source)

    return Opened(list(data.column_names), records, data._fingerprint)


def open_folder(folder: Path, split: str | None, source: str) -> Opened:
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
