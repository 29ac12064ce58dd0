"""CoNLL files: one word per line with its tag in the last column, an empty line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from potstill.data.formats.opened import FileFormat, KnowsColumns, Opened, Record, Records
from potstill.data.formats.text import LONGEST, short_repr, text_lines, without_break
from potstill.errors import InputError

ENDINGS = (".conll", ".conll2003", ".bio", ".iob", ".iob2", ".iobes")
CONLL_2003 = ("eng.train", "eng.testa", "eng.testb")  # the names of its files


def open_conll(path: Path, source: str, knows: KnowsColumns) -> Opened:
    sentences = Conll(path, source)
    return Opened(sentences.names, lambda _: sentences.records(), "conll")


FORMATS = (FileFormat((*ENDINGS, *CONLL_2003), open_conll),)


class ConllLine(NamedTuple):
    number: int
    text: str
    cells: list[str]

    @property
    def may_be_comment(self) -> bool:
        return self.text.startswith("# ")


class Conll:
    """Sentences of a CoNLL file."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        first = next(self._words(), ConllLine(0, "", []))
        self.tabs, self.width = "\t" in first.text, len(first.cells)
        has_tags = any("tags" in record.values for record in self.records())
        self.names = ["tokens", "tags"] if has_tags else ["tokens"]

    def _words(self) -> Iterator[ConllLine]:
        """Yield the lines that cannot be comments."""
        return (line for sentence in self._sentences() for line in sentence if not line.may_be_comment)

    @cached_property
    def _tags(self) -> set[str]:
        return {line.cells[-1] for line in self._words()}

    def _sentences(self) -> Iterator[list[ConllLine]]:
        """Yield the lines of each sentence, with its comments."""
        sentence: list[ConllLine] = []
        size = 0
        for number, line in text_lines(self.path, self.source):
            line = without_break(line)
            if not line.strip(" \t") or line.startswith("-DOCSTART-"):
                if sentence:
                    yield sentence
                sentence, size = [], 0
                continue
            cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
            sentence.append(ConllLine(number, line, cells))
            size += len(line)
            if size > LONGEST:
                reason = f"the sentence that begins here has more than {LONGEST:,} characters"
                raise InputError(
                    f"{self.source}:{sentence[0].number}: {reason}; write an empty line after each sentence"
                )
        if sentence:
            yield sentence

    def records(self) -> Records:
        for sentence in self._sentences():
            width = next((len(line.cells) for line in sentence if not line.may_be_comment), self.width)
            words: list[ConllLine] = []
            for line in sentence:
                if not line.may_be_comment or self._is_word(line, width, first=not words):
                    words.append(line)
            for word in words:
                self._check(word.cells, width, f"{self.source}:{word.number}")
            if words:
                values: dict[str, object] = {"tokens": [word.cells[0] for word in words]}
                if width > 1:
                    values["tags"] = [word.cells[-1] for word in words]
                yield Record(words[0].number, values)

    def _is_word(self, line: ConllLine, width: int, first: bool) -> bool:
        """Tell whether a line that begins with # is a word, not a comment.

        A word has as many columns as the other lines, separated in the same way. Before the first word of a sentence,
        where CoNLL-U has its comments, its tag must also be the tag of a certain word.
        """
        alike = len(line.cells) == width and ("\t" in line.text) == self.tabs
        return alike and (not first or width == 1 or line.cells[-1] in self._tags)

    def _check(self, cells: list[str], width: int, where: str) -> None:
        if len(cells) != width:
            reason = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'} in a sentence that began with {width}"
            raise InputError(f"{where}: {reason}; write every column in each line, and an empty line between sentences")
        if not cells[0].strip() or not cells[-1].strip():
            raise InputError(f"{where}: the first or the last column is empty; write the word first and its tag last")
        if width > 1 and " " in cells[-1]:
            reason = f"the tag {short_repr(cells[-1])} contains a space"
            raise InputError(f"{where}: {reason}; separate the columns by tabs or by spaces, not by both")
