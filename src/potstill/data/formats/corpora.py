"""Files as well-known corpora come: CoNLL's columns, SQuAD's one object, RACE's object per passage, also a folder of them.

All but SQuAD are read bit by bit; a file of SQuAD is one JSON value, which is read whole up to a limit.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import xxhash

from potstill.data.formats.text import LONGEST, PLACE, Records, short_repr, text_lines, without_break, without_repeats
from potstill.errors import InputError

LARGEST = 256 * 2**20  # bytes of a file that is read whole, unpacked

CONLL_ENDINGS = (".conll", ".conll2003", ".bio", ".iob", ".iob2", ".iobes")
CONLL_NAMES = ("eng.train", "eng.testa", "eng.testb")  # as the files of CoNLL-2003 are called

# {"version": "1.1", "data": [{"title": ...
SQUAD = re.compile(
    rb'\s*\{(?:\s*"[^"]*"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,)*\s*"data"\s*:\s*\[\s*\{\s*"(?:title|paragraphs)"'
)
SQUAD_NAMES = ["id", "title", "context", "question", "answers", "is_impossible"]
RACE_NAMES = {"article", "questions", "options"}
RACE_LISTS = ("questions", "options", "answers")  # one entry per question of the passage; the last may be missing
SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")  # in a folder written by save_to_disk


def is_conll(name: str) -> bool:
    name = name.lower().removesuffix(".gz")
    return name.endswith(CONLL_ENDINGS) or name in CONLL_NAMES


class Conll:
    """One word per line, its tag in the last column, a blank line after each sentence."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        lines = ((cells, "\t" in line) for block in self._blocks() for _, line, cells in block if line[:2] != "# ")
        first, self.tabs = next(lines, ([], False))
        self.usual = len(first)
        tagged = any("tags" in record for _, record in self.records())
        self.names = ["tokens", "tags"] if tagged else ["tokens"]

    @cached_property
    def _tags(self) -> set[str]:
        """Of the lines that are words beyond doubt."""
        return {cells[-1] for block in self._blocks() for _, line, cells in block if line[:2] != "# "}

    def _blocks(self) -> Iterator[list[tuple[int, str, list[str]]]]:
        """Number, line and cells of the lines of a sentence, comments among them."""
        block: list[tuple[int, str, list[str]]] = []
        size = 0
        for number, line in text_lines(self.path, self.source):
            line = without_break(line)
            if not line.strip(" \t") or line.startswith("-DOCSTART-"):
                if block:
                    yield block
                block, size = [], 0
                continue
            cells = line.split("\t") if "\t" in line else line.split(" ")
            block.append((number, line, cells if "\t" in line else [cell for cell in cells if cell]))
            size += len(line)
            if size > LONGEST:
                reason = f"the sentence that begins here has more than {LONGEST:,} characters"
                raise InputError(f"{self.source}:{block[0][0]}: {reason}; write an empty line after each sentence")
        if block:
            yield block

    def records(self) -> Records:
        for block in self._blocks():
            width = next((len(cells) for _, line, cells in block if line[:2] != "# "), self.usual)
            rows: list[tuple[int, list[str]]] = []
            for at, line, cells in block:
                if line[:2] != "# " or self._is_word(line, cells, width, first=not rows):
                    rows.append((at, cells))
            for at, cells in rows:
                self._check(cells, width, f"{self.source}:{at}")
            if rows:
                record: dict[str, object] = {"tokens": [cells[0] for _, cells in rows]}
                yield rows[0][0], record | ({"tags": [cells[-1] for _, cells in rows]} if width > 1 else {})

    def _is_word(self, line: str, cells: list[str], width: int, first: bool) -> bool:
        """Whether a line that begins with # is no comment: it has as many columns as the others, separated as theirs
        are; before the first word of a sentence, where CoNLL-U has its comments, its tag must be that of a word too."""
        alike = len(cells) == width and ("\t" in line) == self.tabs
        return alike and (not first or width == 1 or cells[-1] in self._tags)

    def _check(self, cells: list[str], width: int, where: str) -> None:
        if len(cells) != width:
            reason = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'} in a sentence that began with {width}"
            raise InputError(f"{where}: {reason}; write every column in each line, and an empty line between sentences")
        if not cells[0].strip() or not cells[-1].strip():
            raise InputError(f"{where}: the first or the last column is empty; write the word first and its tag last")
        if width > 1 and " " in cells[-1]:
            reason = f"the tag {short_repr(cells[-1])} has a space in it"
            raise InputError(f"{where}: {reason}; separate the columns by tabs or by spaces, not by both")


def beginning(path: Path) -> bytes:
    """The first bytes, unpacked; what cannot be read is told by who reads the file."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            return file.read(2**16).removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError, zlib.error):
        return b""


def whole_object(path: Path, source: str, todo: str) -> dict[str, object]:
    """A file that is one JSON object."""
    lines, size = [], 0
    for _, line in text_lines(path, source, LARGEST):
        lines.append(line)
        size += len(line)
        if size > LARGEST:
            raise InputError(f"{source}: the file has more than {LARGEST:,} characters; write it as JSON lines")
    try:
        value = json.loads("".join(lines), object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{error.lineno}: this is not JSON ({error.msg}); {todo}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}:1: this is not JSON ({error}); {todo}") from None
    if not isinstance(value, dict):
        raise InputError(f"{source}:1: this is {short_repr(value)}, not an object; {todo}")
    return value


def is_squad(path: Path) -> bool:
    return SQUAD.match(beginning(path)) is not None


def squad_records(path: Path, source: str) -> Records:
    """One record per question, counted from 1."""
    todo = 'write {"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [...]}]}]}]}'
    number = 0

    def objects(holder: dict[str, object], key: str) -> list[dict[str, object]]:
        value = holder.get(key)
        if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
            raise InputError(f"{source}:{number + 1}: {key!r} is {short_repr(value)}, not a list of objects; {todo}")
        return value

    for article in objects(whole_object(path, source, todo), "data"):
        for paragraph in objects(article, "paragraphs"):
            for question in objects(paragraph, "qas"):
                number += 1
                yield number, question | {"title": article.get("title"), "context": paragraph.get("context")}


def is_race(path: Path) -> bool:
    """A file of text whose first line is a passage of RACE, not a text."""
    try:
        first = json.loads(beginning(path).lstrip().partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() >= RACE_NAMES


def questions_apart(records: Records, source: str) -> Records:
    """A record of RACE holds a passage and lists of its questions: one record per question, of the same names."""
    for line, record in records:
        where = str(record.get(PLACE, f"{source}:{line}"))
        lists: dict[str, list[object]] = {}
        for key in RACE_LISTS:
            value = record.get(key)
            if value is None and key == "answers":
                continue
            if not isinstance(value, list):
                reason = f"{key!r} is {short_repr(value)}, not a list"
                raise InputError(f"{where}: {reason}; write one entry per question of the passage")
            lists[key] = value
        if len({len(value) for value in lists.values()}) > 1:
            reason = "there are " + ", ".join(f"{len(value)} {key}" for key, value in lists.items())
            raise InputError(f"{where}: {reason}; write one entry per question in each list")
        for parts in zip(*lists.values(), strict=True):
            yield line, record | dict(zip(lists, parts, strict=True))


def race_files(folder: Path) -> list[Path]:
    """Files of passages below the folder, in the order of their names; none if it is a saved data set."""
    if any((folder / name).exists() for name in SAVED):
        return []
    return sorted(path for path in folder.rglob("*.txt") if path.is_file())


def race_object(path: Path) -> dict[str, object]:
    todo = "a folder of .txt files is read as RACE, one passage with its questions in each: take other files out"
    return whole_object(path, str(path), todo)


def race_records(files: list[Path]) -> Records:
    """One record per question, counted from 1 over all files; its place is its file, and its number in there."""
    number = 0
    for path in files:
        passage = race_object(path) | {PLACE: f"{path}:1"}
        for within, (_, record) in enumerate(questions_apart(iter([(1, passage)]), str(path)), 1):
            number += 1
            yield number, record | {PLACE: f"{path}:{within}"}


def race_fingerprint(folder: Path, files: list[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
