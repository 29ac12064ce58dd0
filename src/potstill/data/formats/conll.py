"""CoNLL files: one word per line with its tag in the last column, an empty line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from potstill.data.formats.reading import LONGEST, FileFormat, Opened, Record, Records, short_repr, text_lines
from potstill.errors import InputError

ENDINGS = (".conll", ".conll2003", ".bio", ".iob", ".iob2", ".iobes")
CONLL_2003 = ("eng.train", "eng.testa", "eng.testb")  # the names of its files


class ConllLine(NamedTuple):
    number: int
    cells: list[str]
    tabs: bool  # between the cells
    may_be_comment: bool = False


def open_conll(path: Path, source: str) -> Opened:
    first: ConllLine | None = None  # that is not a comment
    tags: set[str] = set()
    has_tags = False
    for sentence in sentences(path, source):
        words = [line for line in sentence if not line.may_be_comment]
        tags.update(word.cells[-1] for word in words)
        first = first or next(iter(words), None)
        has_tags = has_tags or any(len(word.cells) > 1 for word in words[:1])
    layout = first or ConllLine(0, [], False)
    return Opened(["tokens", "tags"][: 1 + has_tags], lambda _: conll_records(path, source, layout, tags), "conll")


FORMATS = (FileFormat((*ENDINGS, *CONLL_2003), open_conll),)


def sentences(path: Path, source: str) -> Iterator[list[ConllLine]]:
    """Yield the lines of each sentence, with its comments."""
    sentence: list[ConllLine] = []
    size = 0
    for number, line in text_lines(path, source):
        line = line.removesuffix("\n").removesuffix("\r")
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            if sentence:
                yield sentence
            sentence, size = [], 0
            continue
        cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        sentence.append(ConllLine(number, cells, "\t" in line, line.startswith("# ")))
        size += len(line)
        if size > LONGEST:
            reason = f"the sentence that begins here has more than {LONGEST:,} characters"
            raise InputError(f"{source}:{sentence[0].number}: {reason}; write an empty line after each sentence")
    if sentence:
        yield sentence


def conll_records(path: Path, source: str, first: ConllLine, tags: set[str]) -> Records:
    """Yield the sentences. A line that begins with # is a word if it is like the words of the file.

    A word has as many columns as the other lines of its sentence, separated as in the file's first word. Before the
    first word of a sentence, where CoNLL-U has its comments, its tag must also be one of the `tags` of certain words.
    """
    for sentence in sentences(path, source):
        width = next((len(line.cells) for line in sentence if not line.may_be_comment), len(first.cells))
        words: list[ConllLine] = []
        for line in sentence:
            alike = len(line.cells) == width and line.tabs == first.tabs
            if not line.may_be_comment or (alike and (words or width == 1 or line.cells[-1] in tags)):
                check_cells(line.cells, width, f"{source}:{line.number}")
                words.append(line)
        if words:
            values: dict[str, object] = {"tokens": [word.cells[0] for word in words]}
            if width > 1:
                values["tags"] = [word.cells[-1] for word in words]
            yield Record(words[0].number, values)


def check_cells(cells: list[str], width: int, where: str) -> None:
    if len(cells) != width:
        reason = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'} in a sentence that began with {width}"
        raise InputError(f"{where}: {reason}; write every column in each line, and an empty line between sentences")
    if not cells[0].strip() or not cells[-1].strip():
        raise InputError(f"{where}: the first or the last column is empty; write the word first and its tag last")
    if width > 1 and " " in cells[-1]:
        reason = f"the tag {short_repr(cells[-1])} contains a space"
        raise InputError(f"{where}: {reason}; separate the columns by tabs or by spaces, not by both")
