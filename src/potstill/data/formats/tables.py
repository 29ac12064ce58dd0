"""CSV and TSV files: the first line names the columns. A table with one column per pixel is a table of images.

In a table of several columns an empty line is skipped. In a table of one column it could be an empty text, so it is
refused, except at the end of the file. A cell in quotes keeps its line breaks.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from potstill.data.formats.images import PIXELS, joined_pixels, pixel_columns
from potstill.data.formats.reading import LONGEST, FileFormat, Lines, Opened, Record, Records, text_lines, without_break
from potstill.errors import InputError

HINT = " (if the first line is a row already, write one above it such as text,label)"
TABLE_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
WHOLE_CELLS = r'(?:"[^"]*(?:""[^"]*)*"{0}|(?!")[^{0}]*{0})*'  # from the beginning of a row; {0} is the delimiter
QUOTE_FAULTS = {  # by words of csv's message
    "field limit": f"the quote opened here is not closed within {LONGEST:,} characters",
    "end of data": "the quote opened here is never closed",
    "": "there is text after the closing quote of a cell whose quote opens here",
}


class TableRow(NamedTuple):
    line: int  # on which the row begins
    cells: list[str]  # none in an empty line
    raw: str  # the row as it is in the file

    def quoted(self) -> list[str]:
        """Return the contents of the cells that are in quotes."""
        quoted, position = [], 0
        for cell in self.cells if '"' in self.raw else ():
            if self.raw.startswith('"', position):
                quoted.append(cell)
                position += 2 + cell.count('"')
            position += len(cell) + 1
        return quoted


class QuoteError(InputError):
    """A quote is not closed, or is closed in the middle of a cell."""


def open_table_file(path: Path, source: str) -> Opened:
    _, first = next(text_lines(path, source), (0, ""))
    usual, other = "\t," if path.name.lower().removesuffix(".gz").endswith(".tsv") else ",\t"
    delimiter = other if usual not in first and other in first else usual

    def rows(quoted: bool) -> Iterator[TableRow]:
        """Yield all rows, the header too."""
        lines = split_at_returns(text_lines(path, source))
        return quoted_rows(lines, delimiter, source) if quoted else plain_rows(lines, delimiter)

    # GLUE's TSV files have no quoting and stray quotes; TSV files of spreadsheets and pandas are quoted like CSV
    quoted = delimiter == "," or tsv_is_quoted(rows(True))
    if first.startswith(('{"', "[{")):
        raise InputError(f"{source}:1: this is JSON, not a table; rename it to end in .jsonl, one object per line")
    header = next(rows(quoted), TableRow(1, [], ""))
    if not any(header.cells):
        what = "the first line is empty" if first else "the file is empty"
        raise InputError(f"{source}:1: {what}; the first line must name the columns, such as text,label")
    if "\r" in without_break(first):
        raise InputError(f"{source}:1: lines end in a carriage return alone; save it with line feeds (Unix)")
    names = [name.strip() for name in header.cells]
    if len(names) == 1 and ";" in first:
        raise InputError(f"{source}:1: semicolons separate the columns; save it with commas (CSV) or tabs (TSV)")

    def records() -> Records:
        return table_records(rows(quoted), names, quoted, delimiter, source)

    kind = "tsv" if delimiter == "\t" else "csv"
    if (pixels := pixel_columns(names)) is None:
        return Opened(names, lambda _: records(), kind, hint=HINT)
    columns, shape = pixels
    others = [name for name in names if name not in set(columns)]
    joined = lambda _: joined_pixels(records(), columns, source)  # noqa: E731
    return Opened([*others, PIXELS], joined, f"pixels in {kind}", hint=HINT, images={PIXELS: shape})


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
        text = without_break(line)
        yield TableRow(number, text.split(delimiter) if text else [], line)


def quoted_rows(lines: Lines, delimiter: str, source: str) -> Iterator[TableRow]:
    """Yield rows in which a cell that begins with a quote ends at its closing quote; a doubled quote inside is one quote."""
    csv.field_size_limit(LONGEST)
    numbers: list[int] = []  # of the row's lines
    texts: list[str] = []

    def following_lines() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            texts.append(line)
            yield line

    rows = csv.reader(following_lines(), delimiter=delimiter, strict=True)
    while True:
        numbers.clear()
        texts.clear()
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raw = "".join(texts)
            before = re.match(WHOLE_CELLS.format(delimiter), raw)
            line = numbers[0] + raw.count("\n", 0, before.end() if before else 0)
            fault = next(fault for words, fault in QUOTE_FAULTS.items() if words in str(error))
            todo = 'close it, and write a quote inside quotes twice ("")'
            raise QuoteError(f"{source}:{line}: {fault}; {todo}") from None
        if cells is None:
            return
        yield TableRow(numbers[0], cells, "".join(texts))


def tsv_is_quoted(rows: Iterator[TableRow]) -> bool:
    """Decide whether quotes in a TSV file enclose cells.

    They do if the header is quoted. Otherwise they do if no quote is misplaced and some cell needs its quotes: a cell
    that is empty and alone, has a doubled quote or a carriage return, or has a tab or line break without which the
    lines would have wrong numbers of cells.
    """
    needs_quotes = False
    try:
        header = next(rows, TableRow(1, [], ""))
        if header.quoted():
            return True
        width = max(1, len(header.cells))
        for row in rows:
            quoted, fits = row.quoted(), len(row.cells) == width
            if any("\t" in cell or "\n" in cell for cell in quoted):
                lines = row.raw.removesuffix("\n").split("\n")
                fits_plainly = width > 1 and all(line.count("\t") == width - 1 for line in lines)
                if fits_plainly and not fits:
                    return False
                needs_quotes = needs_quotes or (fits and not fits_plainly)
            # writers put "" for an empty text only where an empty line would not be a row
            needed = ('"' in cell or "\r" in cell or (width == 1 and not cell) for cell in quoted)
            needs_quotes = needs_quotes or (fits and any(needed))
    except QuoteError:
        return False
    return needs_quotes


def table_records(rows: Iterator[TableRow], names: list[str], quoted: bool, delimiter: str, source: str) -> Records:
    """Yield the records; refuse rows that do not have as many cells as the header."""
    width = len(names)
    empty = 0  # number of an empty line in a table of one column, which is allowed only at the end of the file
    next(rows)
    for line, cells, _ in rows:
        if not cells:
            empty = empty or (line if width == 1 else 0)
            continue
        if empty:
            where = "" if quoted else ", in a file whose other quotes enclose cells too"
            raise InputError(f'{source}:{empty}: the line is empty; delete it, or write "" for an empty text{where}')
        if len(cells) != width:
            count = f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'} where the header has {width}"
            mark = "tab" if delimiter == "\t" else "comma"
            todo = f"remove the {mark}s from the text, or save it as CSV"
            if len(cells) < width:
                todo = "write the missing cells, also empty ones, or delete the line"
            elif quoted:
                todo = f'put quotes around a text that contains a {mark} ("like{delimiter}this")'
            raise InputError(f"{source}:{line}: {count}; {todo}")
        yield Record(line, dict(zip(names, cells, strict=True)))
