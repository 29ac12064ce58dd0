"""What all readers of formats share: what they return, and how they read bytes and lines. Also .txt, one text per line.

To add a format, write a module here that has `FORMATS`; `potstill.data.sources` finds it by listing the package.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, cast

from potstill.errors import InputError

LONGEST = 16 * 2**20  # bytes of a line, characters of a text: an unclosed quote must not swallow the file
MOST_EXPANDED = 4 * 2**30  # bytes of an unpacked file
MOST_EXPANSION = 100  # times the size of the compressed file; real text reaches 3 to 20
SMALL = 2**20  # bytes: below this a high ratio only means a short file that repeats itself
BOMB = "like a decompression bomb; unpack it yourself if you trust it"
NOT_TEXT = (  # first bytes of files that are not UTF-8 text, what they are, what to do
    (b"PAR1", "a Parquet file", "rename it to end in .parquet"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unpack it, or save the sheet as CSV in UTF-8"),
    (b"BZh", "bzip2-compressed", "unpack it, or compress it with gzip"),
    (b"\xfd7zXZ", "xz-compressed", "unpack it, or compress it with gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it, or compress it with gzip"),
    (b"ARROW1", "an Arrow file", "save it as Parquet"),
    (b"\xff\xfe", "in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "in UTF-16", "save it as UTF-8"),
    (b"\x00\x00\xfe\xff", "in UTF-32", "save it as UTF-8"),
    *((bytes([128, n]), "a Python pickle, which is never opened", "save the rows as CSV") for n in range(2, 6)),
)
NOT_ALLOWED = re.compile("[\x00\ud800-\udfff]")

ImageShape = tuple[int, int, int]
"""Channels, height, width."""
Lines = Iterator[tuple[int, str]]
"""1-based number, the line with its line break."""


class Record(NamedTuple):
    """One record of a source, before its columns are interpreted."""

    line: int  # 1-based line on which it begins; the number of the record where the source has no lines
    values: dict[str, object]  # by column name
    place: str = ""  # file:line, if that is not SOURCE:line

    def where(self, source: str) -> str:
        """Return file:line for error messages."""
        return self.place or f"{source}:{self.line}"


Records = Iterator[Record]


class Opened(NamedTuple):
    """A file or data set whose column names are known, but not yet what they hold."""

    names: list[str]
    records: Callable[[Sequence[str]], Records]  # takes the columns that are needed; others may be omitted
    kind: str  # part of the cache key: the same bytes are different rows as CSV and as lines of text
    fingerprint: str = ""  # of the bytes before they were read
    digest: Callable[[], str] = str  # computes the fingerprint of the bytes as they are now
    hint: str = ""  # added to the error message if no column has a usual name
    images: Mapping[str, ImageShape] = {}  # columns that hold images


@dataclass(frozen=True)
class FileFormat:
    """A format of files that is recognised by the ending of their names."""

    endings: tuple[str, ...]  # lower case, without .gz
    open: Callable[[Path, str], Opened]  # the path, and the source as the user wrote it for messages
    has_content: Callable[[Path], bool] | None = None  # looks into the file if another format has the same ending
    companions: Callable[[Path], list[Path]] = lambda path: []  # other files that are read with this one


def is_gzipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading; if it is gzipped, its content is unpacked."""
    return cast(IO[bytes], gzip.open(path, "rb")) if is_gzipped(path) else path.open("rb")


def expansion_limit(path: Path) -> int:
    """Return how many bytes a compressed file may expand to."""
    return min(MOST_EXPANDED, max(SMALL, MOST_EXPANSION * path.stat().st_size))


def text_lines(path: Path, source: str, longest: int = LONGEST) -> Lines:
    """Yield the lines of a UTF-8 file without its byte order mark; refuse anything else with its line number."""
    number = expanded = 0
    try:
        limit = expansion_limit(path) if is_gzipped(path) else None
        with open_bytes(path) as file:
            while raw := next_line(file, longest if limit is None else min(longest, limit - expanded)):
                number += 1
                expanded += len(raw)
                if number == 1:
                    refuse_other_formats(raw[:4096], f"{source}:1")
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if limit is not None and expanded > limit:
                    raise InputError(f"{source}:{number}: the file expands to more than {limit:,} bytes, {BOMB}")
                if len(raw) > longest:
                    raise InputError(f"{source}:{number}: the line is longer than {longest:,} bytes; split the text")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    reason = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8"
                    raise InputError(f"{source}:{number}: {reason}; save it as UTF-8") from None
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{source}:{number + 1}: the gzip file is damaged ({error}); copy it again") from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise InputError(f"{source}: {reason}; check the path and its permissions") from None


def next_line(file: IO[bytes], longest: int) -> bytes:
    """Return the next line, or `longest` + 1 bytes of it if it is too long."""
    parts, length = [], 0
    while length <= longest and (part := file.readline(min(2**20, longest + 1 - length))):
        parts.append(part)
        length += len(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def refuse_other_formats(start: bytes, where: str) -> None:
    """Raise an error that names the format if the first bytes of a file show that it is not UTF-8 text."""
    for magic, what, todo in NOT_TEXT:
        if start.startswith(magic):
            raise InputError(f"{where}: this is {what}, not UTF-8 text; {todo}")
    even, odd = start[0::2], start[1::2]  # UTF-16 without a byte order mark: every other byte of Latin text is zero
    for zeros, others in ((even, odd), (odd, even)):
        if len(start) >= 8 and b"\x00" not in others and zeros.count(b"\x00") > 0.8 * len(zeros):
            raise InputError(f"{where}: this is in UTF-16, not UTF-8 text; save it as UTF-8")


def first_bytes(path: Path) -> bytes:
    """Return the first 64 KiB, unpacked; nothing if they cannot be read, which the reader of the file will report."""
    try:
        with open_bytes(path) as file:
            return file.read(2**16).removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError, zlib.error):
        return b""


def short_repr(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."


def clean_text(text: str) -> str:
    """Replace NUL and lone surrogates, which tokenizers and files refuse, by U+FFFD, so that the length stays the same."""
    return NOT_ALLOWED.sub("\ufffd", text)


def without_break(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def line_records(path: Path, source: str) -> Records:
    """Yield one text per line. An empty line is an empty text, so that row n is line n, except at the end of the file."""
    rows = 0
    for number, line in text_lines(path, source):
        if text := without_break(line):
            for empty in range(rows + 1, number):
                yield Record(empty, {"text": ""})
            yield Record(number, {"text": text})
            rows = number


def open_lines(kind: str, path: Path, source: str) -> Opened:
    return Opened(["text"], lambda _: line_records(path, source), kind)


TEXT_LINES = ("lines", "wikitext")  # kinds of files of running text
FORMATS = (  # WikiText is published as .tokens
    FileFormat((".txt",), partial(open_lines, "lines")),
    FileFormat((".tokens",), partial(open_lines, "wikitext")),
)
