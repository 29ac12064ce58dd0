"""Independent readers: Python's csv and json, pyarrow and numpy, and a few lines for what has no library. Nothing of potstill.

Each gives the rows of a file as texts, or raises Unreadable where a careful reader would not guess.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

LETTER = "\ue000"  # of no file here


class Unreadable(Exception):
    pass


class Read(NamedTuple):
    text: str
    pair: str | None
    label: Any  # a text, several, places with texts; None: none


class Names(NamedTuple):
    """Which column is what."""

    text: str
    pair: str | None = None
    label: str | None = None


def spoken(text: str) -> str:
    """NUL and half a surrogate are no text: U+FFFD stands for them."""
    return "".join("\ufffd" if letter == "\0" or 0xD800 <= ord(letter) <= 0xDFFF else letter for letter in text)


def content(path: Path) -> bytes:
    data = path.read_bytes()
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable from error


def decoded(path: Path) -> str:
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable from error


def lines_of(path: Path) -> list[str]:
    """At line feeds; the carriage return before one belongs to it."""
    parts = decoded(path).split("\n")
    if parts[-1] == "":
        parts.pop()
    return [part.removesuffix("\r") for part in parts]


def label_text(value: Any) -> str | None:
    """A label as a text: what was written, without the space around it; a whole number has no fraction."""
    if value is None:
        return None
    if isinstance(value, str):
        return spoken(value.strip()) or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    raise Unreadable


def table_rows(records: list[list[str]], names: Names) -> list[Read]:
    """Of the cells of a table whose first record is its header."""
    if not records:
        raise Unreadable
    header = [name.strip() for name in records[0]]
    if len(set(header)) < len(header) or names.text not in header:
        raise Unreadable
    found = []
    for cells in records[1:]:
        if len(cells) != len(header):
            raise Unreadable
        at = dict(zip(header, cells, strict=True))
        pair = None if names.pair is None else spoken(at[names.pair])
        found.append(Read(spoken(at[names.text]), pair, label_text(at[names.label]) if names.label else None))
    if not found:
        raise Unreadable
    return found


def quoted_tables(path: Path, names: Names, delimiter: str) -> list[list[Read]]:
    """By Python's csv module. To its reader a carriage return alone ends a line; its writer leaves one without quotes, as a
    letter. So a table of several columns may be meant in either way; in one column nothing tells, and only the reader counts."""
    csv.field_size_limit(2**30)
    told = decoded(path)
    found = []
    for one in dict.fromkeys((told, re.sub("\r(?!\n|\\Z)", LETTER, told))):
        try:
            cells = list(csv.reader(io.StringIO(one, newline=""), delimiter=delimiter, strict=True))
            back = [[cell.replace(LETTER, "\r") for cell in row] for row in cells]
            found.append(table_rows(without_blanks(back), names))
        except (csv.Error, Unreadable):
            continue
        if len(back[0]) == 1:
            break
    return found


def without_blanks(records: list[list[str]]) -> list[list[str]]:
    """A blank line is no row, but in a table of one column it could be an empty text: there only the end has any."""
    kept = [record for record in records if record]
    if kept and len(kept[0]) == 1 and records[: len(kept)] != kept:
        raise Unreadable
    return kept


def plain_table(path: Path, names: Names, delimiter: str) -> list[Read]:
    """A line is a row and a quote a letter, as in GLUE's files; a carriage return alone ends a line, as for Python's csv."""
    csv.field_size_limit(2**30)
    told = io.StringIO(decoded(path), newline="")
    cells = without_blanks(list(csv.reader(told, delimiter=delimiter, quoting=csv.QUOTE_NONE)))
    # two quotes alone in a line are an empty text, where the file can be read with quotes at all
    if cells and len(cells[0]) == 1 and ['""'] in cells and quoted_tables(path, names, delimiter):
        raise Unreadable
    return table_rows(cells, names)


def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise Unreadable
    return dict(pairs)


def parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=no_twice)
    except (ValueError, RecursionError) as error:
        raise Unreadable from error


def record_rows(records: list[dict[str, Any]], names: Names) -> list[Read]:
    """Of objects: a text must be a text, a label a text, a number or a list of these."""
    found = []
    for record in records:
        texts = [record.get(name) for name in (names.text, names.pair) if name is not None]
        if not all(isinstance(text, str) for text in texts):
            raise Unreadable
        label = record.get(names.label) if names.label else None
        if isinstance(label, list):
            label = tuple(label_text(one) or "" for one in label)
            if "" in label:
                raise Unreadable
        else:
            label = label_text(label)
        text, *pair = (spoken(one) for one in texts)
        found.append(Read(text, pair[0] if pair else None, label))
    return found


def json_lines(path: Path, names: Names) -> list[Read]:
    values = [parsed(line) for line in decoded(path).split("\n") if line.strip()]
    if not all(isinstance(value, dict) for value in values):
        raise Unreadable
    return record_rows(values, names)


def parquet(path: Path, names: Names) -> list[Read]:
    import pyarrow
    from pyarrow import parquet as files

    try:
        wanted = [name for name in names if name is not None]
        return record_rows(files.ParquetFile(path).read(wanted).to_pylist(), names)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise Unreadable from error


def conll(path: Path, doubted: bool = False) -> list[Read]:
    """Sentences between blank lines and -DOCSTART-; words first and tags last. Where columns have tabs, a line with # and no
    tab is a comment; where they have spaces, it is one if it has another number of cells than the words around it. `doubted`:
    also one that stands before the first word and would have a tag that no other word has; nothing tells which is meant."""
    blocks: list[list[str]] = [[]]
    for line in lines_of(path):
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            blocks.append([])
        else:
            blocks[-1].append(line)
    sure = [cells_of(line) for block in blocks for line in block if not line.startswith("# ")]
    usual, tags = len(sure[0]) if sure else 0, {cells[-1] for cells in sure}
    found = []
    for block in blocks:
        words = [line for line in block if not line.startswith("# ")]
        width = len(cells_of(words[0])) if words else usual
        tabs = any("\t" in line for line in words)
        kept: list[list[str]] = []
        for line in block:
            cells = cells_of(line)
            if line.startswith("# "):
                alike = len(cells) == width and ("\t" in line or not tabs)
                if not alike or (doubted and not kept and width > 1 and cells[-1] not in tags):
                    continue
            kept.append(cells)
        if any(len(cells) != width or not cells[0].strip() or not cells[-1].strip() for cells in kept):
            raise Unreadable
        if kept and width > 1 and any(" " in cells[-1] for cells in kept):
            raise Unreadable
        if kept:
            last = tuple(spoken(cells[-1].strip()) for cells in kept) if width > 1 else None
            found.append(Read("\0".join(spoken(cells[0]) for cells in kept), None, last))
    return found


def cells_of(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def squad(path: Path) -> list[Read]:
    found = []
    for article in _objects(parsed(decoded(path)), "data"):
        for paragraph in _objects(article, "paragraphs"):
            for question in _objects(paragraph, "qas"):
                found.append(squad_question(question, paragraph.get("context")))
    return found


def _objects(holder: Any, key: str) -> list[dict[str, Any]]:
    found = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Unreadable
    return found


def squad_question(question: dict[str, Any], context: Any) -> Read:
    """The answers must stand where they say."""
    asked = question.get("question")
    answers = question.get("answers") or []
    if not isinstance(asked, str) or not isinstance(context, str) or not isinstance(answers, list):
        raise Unreadable
    spans = []
    for one in answers:
        text, start = (one.get("text"), one.get("answer_start")) if isinstance(one, dict) else (one, None)
        if not isinstance(text, str) or not text.strip():
            raise Unreadable
        if start is None:
            start = context.find(text)
        number = label_text(start)
        if number is None or not re.fullmatch("[0-9]{1,18}", number):
            raise Unreadable
        if context[int(number) : int(number) + len(text)] != text:
            raise Unreadable
        spans.append((int(number), spoken(text)))
    return Read(spoken(asked), spoken(context), tuple(spans) or None)


def two_files(first: Path, second: Path) -> list[Read]:
    ours, theirs = lines_of(first), lines_of(second)
    if len(ours) != len(theirs) or not all(line.strip() for line in [*ours, *theirs]):
        raise Unreadable
    return [Read(spoken(text), spoken(pair), "") for text, pair in zip(ours, theirs, strict=True)]


def text_lines(path: Path) -> list[Read]:
    """A text per line; an empty one counts where others follow."""
    lines = lines_of(path)
    while lines and not lines[-1]:
        lines.pop()
    return [Read(spoken(line), None, None) for line in lines]


def npz(path: Path, names: Names) -> list[Read]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            images = arrays[names.text]
            labels = arrays[names.label].tolist() if names.label else [None] * len(images)
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        zlib.error,
        zipfile.BadZipFile,
        NotImplementedError,
        SyntaxError,
    ) as error:
        raise Unreadable from error
    if images.dtype != np.uint8 or images.ndim not in (2, 3, 4) or len(images) != len(labels):
        raise Unreadable
    if images.ndim == 4:  # channels first, as networks read them
        images = images.transpose(0, 3, 1, 2)
    return [
        Read(image.tobytes().decode("latin-1"), None, label_text(label))
        for image, label in zip(images, labels, strict=True)
    ]


def idx_array(path: Path) -> tuple[tuple[int, ...], bytes]:
    data = content(path)
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise Unreadable
    sizes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    if not sizes or len(data) != 4 + 4 * len(sizes) + math.prod(sizes):
        raise Unreadable
    return sizes, data[4 + 4 * len(sizes) :]


def idx(images: Path, labels: Path | None) -> list[Read]:
    sizes, pixels = idx_array(images)
    if len(sizes) != 3:
        raise Unreadable
    named: list[str | None] = [None] * sizes[0]
    if labels is not None:
        counted, numbers = idx_array(labels)
        if counted != (sizes[0],):
            raise Unreadable
        named = [str(number) for number in numbers]
    size = sizes[1] * sizes[2]
    return [Read(pixels[at * size : (at + 1) * size].decode("latin-1"), None, named[at]) for at in range(sizes[0])]
