"""Text formats, read strictly and a line at a time: CSV, TSV, plain lines, JSON lines; UTF-8, gzipped or not.

Blank lines: in a table of several columns a wholly empty line is skipped; in a table of one column it could be an
empty text, so it is refused, except at the end of the file. What stands between quotes keeps its line breaks.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from potstill.errors import InputError

LONGEST = 16 * 2**20  # bytes of a line, characters of a quoted cell: an unclosed quote must not swallow the file
EXPANDED = 4 * 2**30  # bytes out of a .gz
EXPANSION = 100  # times the .gz file's own size; real text reaches 3 to 20
MOST_NAMES = 10_000  # different keys in a JSON lines file: more means that the keys are data
HARMLESS = 2**20  # bytes: below this a high ratio is only a short file that repeats itself

FOREIGN = (  # how files begin that are not text, what they are, what to do
    (b"PAR1", "a Parquet file", "rename it to end in .parquet"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unpack it, or save the sheet as CSV in UTF-8"),
    (b"BZh", "bzip2-compressed", "unpack it, or compress it with gzip"),
    (b"\xfd7zXZ", "xz-compressed", "unpack it, or compress it with gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it, or compress it with gzip"),
    (b"ARROW1", "an Arrow file", "save it as Parquet"),
    (b"\xff\xfe", "in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "in UTF-16", "save it as UTF-8"),
    (b"\x00\x00\xfe\xff", "in UTF-32", "save it as UTF-8"),
)
PICKLE = re.compile(rb"\x80[\x02-\x05]")
JSON_LINES = 'write JSON lines: one object per line, such as {"text": "a fine film", "label": "positive"}'
CLOSE_IT = 'close it, and write a quote inside quotes twice ("")'

UNSPEAKABLE = re.compile("[\x00\ud800-\udfff]")
TABLE_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
INSIDE = re.compile(r'[^"]*(?:""[^"]*)*')  # what may stand between an opening and its closing quote

Lines = Iterator[tuple[int, str]]  # 1-based number, the line with its line break
Records = Iterator[tuple[int, dict[str, object]]]  # line on which the record begins, values by column
PLACE = "\x00place"  # key of a record whose file and line are others than those of its source


class Record(NamedTuple):
    line: int  # on which the record begins
    cells: list[str]
    quoted: tuple[str, ...] = ()  # contents of the cells that stood in quotes
    raw: str = ""  # the record as it stands in the file, if it has a quote


class QuoteError(InputError):
    """A quote that is not closed, or is closed in the middle of a cell."""


def text_lines(path: Path, source: str, longest: int = LONGEST) -> Lines:
    """The lines of a UTF-8 file, gzipped or not, without its byte order mark; anything else is refused at its line."""
    number = expanded = 0
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        allowed = min(EXPANDED, max(HARMLESS, EXPANSION * path.stat().st_size)) if compressed else None
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            while raw := next_line(file, longest, None if allowed is None else allowed - expanded):
                number += 1
                expanded += len(raw)
                if number == 1:
                    refuse_foreign(raw[:4096], source)
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if allowed is not None and expanded > allowed:
                    reason = f"the compressed file grows to more than {allowed:,} bytes, like a decompression bomb"
                    raise InputError(f"{source}:{number}: {reason}; unpack it yourself if you trust it")
                if len(raw) > longest:
                    raise InputError(
                        f"{source}:{number}: the line is longer than {longest:,} bytes; cut the text into parts"
                    )
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    reason = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8"
                    raise InputError(f"{source}:{number}: {reason}; save it as UTF-8") from None
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{source}:{number + 1}: the gzip file is damaged ({error}); compress or copy it again"
        ) from None
    except OSError as error:
        raise InputError(
            f"{source}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from None


def next_line(file: IO[bytes] | gzip.GzipFile, longest: int, room: int | None) -> bytes:
    """The next line; of one that is too long, or has no room, so much of it that this can be seen."""
    most = longest if room is None else min(longest, room)
    pieces, length = [], 0
    while length <= most and (piece := file.readline(min(2**20, most + 1 - length))):
        pieces.append(piece)
        length += len(piece)
        if piece.endswith(b"\n"):
            break
    return b"".join(pieces)


def refuse_foreign(head: bytes, source: str) -> None:
    """Say by its first bytes what a file is that is not UTF-8 text."""
    for magic, what, todo in FOREIGN:
        if head.startswith(magic):
            raise InputError(f"{source}:1: this is {what}, not UTF-8 text; {todo}")
    if PICKLE.match(head):
        raise InputError(
            f"{source}:1: this is a Python pickle, which is never opened; save the rows as CSV or JSON lines"
        )
    even, odd = head[0::2], head[1::2]  # UTF-16 without its mark: every other byte of Latin text is zero
    for zeros, letters in ((even, odd), (odd, even)):
        if len(head) >= 8 and b"\x00" not in letters and zeros.count(b"\x00") > 0.8 * len(zeros):
            raise InputError(f"{source}:1: this is in UTF-16, not UTF-8 text; save it as UTF-8")


def short_repr(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."


def clean_text(text: str) -> str:
    """Tokenizers and files refuse NUL and lone surrogates: they become U+FFFD, so that the text keeps its length."""
    return UNSPEAKABLE.sub("\ufffd", text)


def without_break(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def broken(lines: Lines) -> Lines:
    """A carriage return alone ends a line of a table too, as for Python's csv module and pandas; of a quoted cell the
    lines are put together again."""
    for number, line in lines:
        if "\r" in line.removesuffix("\n").removesuffix("\r"):
            yield from ((number, part[0]) for part in TABLE_LINE.finditer(line))
        else:
            yield number, line


def plain_records(lines: Lines, delimiter: str) -> Iterator[Record]:
    """Quotes are letters like any other; a line is a record."""
    for number, line in lines:
        yield Record(number, without_break(line).split(delimiter))


def quoted_records(lines: Lines, delimiter: str, source: str) -> Iterator[Record]:
    """A cell that begins with a quote ends with its closing quote; a doubled quote inside stands for one."""
    for number, line in lines:
        if '"' not in line:
            yield Record(number, without_break(line).split(delimiter))
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
                    match = INSIDE.match(line, position)
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
        yield Record(number, cells, tuple(quoted), "".join(raw))


class Delimited:
    """A CSV or TSV file: its column names, and its records as often as wanted."""

    def __init__(self, path: Path, source: str, usual: str, knows: Callable[[list[str]], bool]) -> None:
        """`usual` is the delimiter the file's name promises; `knows` tells whether column names make sense."""
        self.path, self.source = path, source
        _, first = next(text_lines(path, source), (0, ""))
        other = "," if usual == "\t" else "\t"
        misnamed = usual not in first and other in first and not knows([first.strip()])
        self.delimiter = other if misnamed and knows(self._header(first, other)) else usual
        # GLUE's TSV files have no quoting and stray quotes; those of spreadsheets and pandas are quoted like CSV
        self.quoted = self.delimiter == "," or self._tsv_is_quoted()
        if first.startswith(('{"', "[{")):
            raise InputError(f"{source}:1: this is JSON, not a table; rename it to end in .jsonl, one object per line")
        header = next(self._all_records(), None)
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

    def _header(self, first: str, delimiter: str) -> list[str]:
        return [cell.strip().strip('"') for cell in first.split(delimiter)]

    def _all_records(self) -> Iterator[Record]:
        lines = broken(text_lines(self.path, self.source))
        if self.quoted:
            return quoted_records(lines, self.delimiter, self.source)
        return plain_records(lines, self.delimiter)

    def _tsv_is_quoted(self) -> bool:
        """Quoted if the header is; else if no quote is misplaced and some cell needs its quotes: it is empty and alone, has a
        doubled quote or a carriage return, or a tab or line break without which lines would have wrong numbers of cells."""
        records = quoted_records(broken(text_lines(self.path, self.source)), self.delimiter, self.source)
        sign = False
        try:
            header = next(records, None)
            if header is None or header.quoted:
                return header is not None
            width = len(header.cells)
            for record in records:
                if not record.quoted:
                    continue
                fits = len(record.cells) == width
                if any(self.delimiter in cell or "\n" in cell for cell in record.quoted):
                    lines = record.raw.removesuffix("\n").split("\n")
                    fits_plainly = width > 1 and all(line.count(self.delimiter) == width - 1 for line in lines)
                    if fits_plainly and not fits:
                        return False
                    sign = sign or (fits and not fits_plainly)
                # writers put "" for an empty text only where an empty line would be no row
                needed = ('"' in cell or "\r" in cell or (width == 1 and not cell) for cell in record.quoted)
                sign = sign or (fits and any(needed))
        except QuoteError:
            return False
        return sign

    def records(self) -> Records:
        """Line and cells by column name; as many cells as the header has."""
        width = len(self.names)
        blank = 0  # line of an empty line in a table of one column, which only the end of the file excuses
        records = self._all_records()
        next(records)
        for line, cells, quoted, _ in records:
            if cells == [""] and not quoted:
                blank = blank or (line if width == 1 else 0)
                continue
            if blank:
                way = "" if self.quoted else ", in a file whose other quotes are no letters"
                raise InputError(
                    f'{self.source}:{blank}: the line is empty; delete it, or write "" for an empty text{way}'
                )
            if len(cells) != width:
                raise InputError(f"{self.source}:{line}: {self._miscounted(len(cells), width)}")
            yield line, dict(zip(self.names, cells, strict=True))

    def _miscounted(self, found: int, width: int) -> str:
        name = "tab" if self.delimiter == "\t" else "comma"
        has = f"{found} {'cell' if found == 1 else 'cells'} where the header has {width}"
        if found < width:
            return f"{has}; write the missing cells, empty ones too, or delete the line"
        if self.quoted:
            return f'{has}; put quotes around a text that has a {name} in it ("like{self.delimiter}this")'
        return f"{has}; take the {name}s out of the text, or save it as CSV"


def line_records(path: Path, source: str) -> Records:
    """One text per line; an empty line is an empty text, so that rows stay beside their lines, but not at the end."""
    rows = 0
    for number, line in text_lines(path, source):
        if text := without_break(line):
            for empty in range(rows + 1, number):
                yield empty, {"text": ""}
            yield number, {"text": text}
            rows = number


def json_records(path: Path, source: str) -> Records:
    """One object per line; blank lines are no rows."""
    for number, line in text_lines(path, source):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=without_repeats)
        except (ValueError, RecursionError) as error:
            value, reason = None, f"this is not JSON ({str(error).partition(': line')[0]})"
        else:
            reason = f"this is {str(value)[:60]!r}, not an object"
        if not isinstance(value, dict):
            if line.lstrip().startswith("["):
                reason = "this is a JSON array"
            raise InputError(f"{source}:{number}: {reason}; {JSON_LINES}")
        yield number, value


def json_names(path: Path, source: str) -> list[str]:
    """Every key that occurs, so that a label in the last line alone is a label."""
    names: dict[str, None] = {}
    for number, record in json_records(path, source):
        names |= dict.fromkeys(record)
        if len(names) > MOST_NAMES:
            raise InputError(
                f"{source}:{number}: more than {MOST_NAMES:,} different keys; use the same keys in every line"
            )
    if not names:
        raise InputError(f"{source}:1: the file is empty; {JSON_LINES}")
    return list(names)


def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return values
