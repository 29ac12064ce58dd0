"""CSV and TSV files: the first line names the columns. A table with one column per pixel is a table of images.

In a table of several columns an empty line is skipped. In a table of one column it could be an empty text, so it is
refused, except at the end of the file. A cell in quotes keeps its line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from potstill.data.formats.images import PIXELS, joined_pixels, pixel_columns
from potstill.data.formats.opened import FileFormat, KnowsColumns, Opened, Record, Records
from potstill.data.formats.text import LONGEST, Lines, text_lines, without_break
from potstill.errors import InputError

CLOSE_IT = 'close it, and write a quote inside quotes twice ("")'
HINT = " (if the first line is a row already, write one above it such as text,label)"
TABLE_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
QUOTED_TEXT = re.compile(r'[^"]*(?:""[^"]*)*')  # between an opening quote and its closing quote


class TableRow(NamedTuple):
    line: int  # on which the row begins
    cells: list[str]
    quoted: tuple[str, ...] = ()  # contents of the cells that are in quotes
    raw: str = ""  # the row as it is in the file, if it has a quote


class QuoteError(InputError):
    """A quote is not closed, or is closed in the middle of a cell."""


def open_table_file(path: Path, source: str, knows: KnowsColumns) -> Opened:
    delimiter = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    table = DelimitedTable(path, source, delimiter, knows)
    if (pixels := pixel_columns(table.names)) is None:
        return Opened(table.names, lambda _: table.records(), table.kind, hint=HINT)
    columns, shape = pixels
    names = [name for name in table.names if name not in set(columns)]
    return Opened(
        [*names, PIXELS],
        lambda _: joined_pixels(table.records(), columns, source),
        f"pixels in {table.kind}",
        hint=HINT,
        images={PIXELS: shape},
    )


FORMATS = (FileFormat((".csv", ".tsv"), open_table_file),)


def split_at_returns(lines: Lines) -> Lines:
    """End lines at a lone carriage return too, as Python's csv module and pandas do. Quoted cells are joined again later."""
    for number, line in lines:
        if "\r" in without_break(line):
            yield from ((number, part[0]) for part in TABLE_LINE.finditer(line))
        else:
            yield number, line


def plain_rows(lines: Lines, delimiter: str) -> Iterator[TableRow]:
    """Yield one row per line; quotes are ordinary characters."""
    for number, line in lines:
        yield TableRow(number, without_break(line).split(delimiter))


def quoted_rows(lines: Lines, delimiter: str, source: str) -> Iterator[TableRow]:
    """Yield rows in which a cell that begins with a quote ends at its closing quote; a doubled quote inside is one quote."""
    for number, line in lines:
        if '"' not in line:
            yield TableRow(number, without_break(line).split(delimiter))
            continue
        cells: list[str] = []
        quoted: list[str] = []
        raw = [line]
        opened, last, position = number, number, 0
        while True:
            if line.startswith('"', position):
                opened, length, parts = last, 0, []
                position += 1
                while True:
                    match = QUOTED_TEXT.match(line, position)
                    end = match.end() if match else position  # the pattern matches the empty text too: never None
                    parts.append(line[position:end])
                    length += end - position
                    if end < len(line):
                        break
                    if length > LONGEST:
                        reason = f"the quote opened here is not closed within {LONGEST:,} characters"
                        raise QuoteError(f"{source}:{opened}: {reason}; {CLOSE_IT}")
                    last, line = next(lines, (0, ""))
                    if not last:
                        raise QuoteError(f"{source}:{opened}: the quote opened here is never closed; {CLOSE_IT}")
                    raw.append(line)
                    position = 0
                cells.append("".join(parts).replace('""', '"'))
                quoted.append(cells[-1])
                position = end + 1
                if not line.startswith(delimiter, position):
                    if without_break(line[position:]):
                        reason = "there is text after the closing quote of a cell whose quote opens here"
                        raise QuoteError(f"{source}:{opened}: {reason}; {CLOSE_IT}")
                    break
                position += 1
            else:
                end = line.find(delimiter, position)
                if end < 0:
                    cells.append(without_break(line[position:]))
                    break
                cells.append(line[position:end])
                position = end + 1
        yield TableRow(number, cells, tuple(quoted), "".join(raw))


class DelimitedTable:
    """A CSV or TSV file: its column names and its records."""

    def __init__(self, path: Path, source: str, usual: str, knows: KnowsColumns) -> None:
        """`usual` is the delimiter that the file's name suggests."""
        self.path, self.source = path, source
        _, first = next(text_lines(path, source), (0, ""))
        other = "," if usual == "\t" else "\t"
        misnamed = usual not in first and other in first and not knows([first.strip()])
        renamed = [cell.strip().strip('"') for cell in first.split(other)]
        self.delimiter = other if misnamed and knows(renamed) else usual
        # GLUE's TSV files have no quoting and stray quotes; TSV files of spreadsheets and pandas are quoted like CSV
        self.quoted = self.delimiter == "," or self._tsv_is_quoted()
        if first.startswith(('{"', "[{")):
            raise InputError(f"{source}:1: this is JSON, not a table; rename it to end in .jsonl, one object per line")
        header = next(self._rows(), None)
        if header is None or not any(header.cells):
            what = "the first line is empty" if first else "the file is empty"
            raise InputError(f"{source}:1: {what}; the first line must name the columns, such as text,label")
        if "\r" in without_break(first):
            raise InputError(f"{source}:1: lines end in a carriage return alone; save it with line feeds (Unix)")
        self.names = [name.strip() for name in header.cells]
        if len(self.names) == 1 and ";" in first and not knows(self.names):
            raise InputError(f"{source}:1: semicolons separate the columns; save it with commas (CSV) or tabs (TSV)")

    @property
    def kind(self) -> str:
        return "tsv" if self.delimiter == "\t" else "csv"

    def _rows(self, quoted: bool | None = None) -> Iterator[TableRow]:
        """Yield all rows, the header too."""
        lines = split_at_returns(text_lines(self.path, self.source))
        if self.quoted if quoted is None else quoted:
            return quoted_rows(lines, self.delimiter, self.source)
        return plain_rows(lines, self.delimiter)

    def _tsv_is_quoted(self) -> bool:
        """Decide whether quotes in a TSV file enclose cells.

        They do if the header is quoted. Otherwise they do if no quote is misplaced and some cell needs its quotes: a
        cell that is empty and alone, has a doubled quote or a carriage return, or has a tab or line break without
        which the lines would have wrong numbers of cells.
        """
        rows = self._rows(quoted=True)
        needs_quotes = False
        try:
            header = next(rows, None)
            if header is None or header.quoted:
                return header is not None
            width = len(header.cells)
            for row in rows:
                if not row.quoted:
                    continue
                fits = len(row.cells) == width
                if any(self.delimiter in cell or "\n" in cell for cell in row.quoted):
                    lines = row.raw.removesuffix("\n").split("\n")
                    fits_plainly = width > 1 and all(line.count(self.delimiter) == width - 1 for line in lines)
                    if fits_plainly and not fits:
                        return False
                    needs_quotes = needs_quotes or (fits and not fits_plainly)
                # writers put "" for an empty text only where an empty line would not be a row
                needed = ('"' in cell or "\r" in cell or (width == 1 and not cell) for cell in row.quoted)
                needs_quotes = needs_quotes or (fits and any(needed))
        except QuoteError:
            return False
        return needs_quotes

    def records(self) -> Records:
        """Yield the records; refuse rows that do not have as many cells as the header."""
        width = len(self.names)
        empty = 0  # number of an empty line in a table of one column, which is allowed only at the end of the file
        rows = self._rows()
        next(rows)
        for line, cells, quoted, _ in rows:
            if cells == [""] and not quoted:
                empty = empty or (line if width == 1 else 0)
                continue
            if empty:
                where = "" if self.quoted else ", in a file whose other quotes enclose cells too"
                todo = f'delete it, or write "" for an empty text{where}'
                raise InputError(f"{self.source}:{empty}: the line is empty; {todo}")
            if len(cells) != width:
                raise InputError(f"{self.source}:{line}: {self._wrong_count(len(cells), width)}")
            yield Record(line, dict(zip(self.names, cells, strict=True)))

    def _wrong_count(self, cells: int, width: int) -> str:
        name = "tab" if self.delimiter == "\t" else "comma"
        reason = f"{cells} {'cell' if cells == 1 else 'cells'} where the header has {width}"
        if cells < width:
            return f"{reason}; write the missing cells, also empty ones, or delete the line"
        if self.quoted:
            return f'{reason}; put quotes around a text that contains a {name} ("like{self.delimiter}this")'
        return f"{reason}; remove the {name}s from the text, or save it as CSV"
