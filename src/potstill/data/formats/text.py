"""Text files, read strictly and one line at a time: UTF-8, gzipped or not. A .txt file has one text per line."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from potstill.data.formats.compressed import BOMB, expansion_limit, is_gzipped, open_bytes
from potstill.data.formats.opened import FileFormat, KnowsColumns, Opened, Record, Records
from potstill.errors import InputError

LONGEST = 16 * 2**20  # bytes of a line, characters of a text: an unclosed quote must not swallow the file

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
)
PICKLE = re.compile(rb"\x80[\x02-\x05]")
NOT_ALLOWED = re.compile("[\x00\ud800-\udfff]")

Lines = Iterator[tuple[int, str]]  # 1-based number, the line with its line break


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
                    refuse_other_formats(raw[:4096], source)
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if limit is not None and expanded > limit:
                    reason = f"the compressed file expands to more than {limit:,} bytes"
                    raise InputError(f"{source}:{number}: {reason}, {BOMB}")
                if len(raw) > longest:
                    reason = f"the line is longer than {longest:,} bytes"
                    raise InputError(f"{source}:{number}: {reason}; split the text")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    reason = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8"
                    raise InputError(f"{source}:{number}: {reason}; save it as UTF-8") from None
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"the gzip file is damaged ({error})"
        raise InputError(f"{source}:{number + 1}: {reason}; compress or copy it again") from None
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


def refuse_other_formats(start: bytes, source: str) -> None:
    """Raise an error that names the format if the first bytes of a file show that it is not UTF-8 text."""
    for magic, what, todo in NOT_TEXT:
        if start.startswith(magic):
            raise InputError(f"{source}:1: this is {what}, not UTF-8 text; {todo}")
    if PICKLE.match(start):
        reason = "this is a Python pickle, which is never opened"
        raise InputError(f"{source}:1: {reason}; save the rows as CSV or JSON lines")
    even, odd = start[0::2], start[1::2]  # UTF-16 without a byte order mark: every other byte of Latin text is zero
    for zeros, others in ((even, odd), (odd, even)):
        if len(start) >= 8 and b"\x00" not in others and zeros.count(b"\x00") > 0.8 * len(zeros):
            raise InputError(f"{source}:1: this is in UTF-16, not UTF-8 text; save it as UTF-8")


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


def open_lines(path: Path, source: str, knows: KnowsColumns) -> Opened:
    return Opened(["text"], lambda _: line_records(path, source), "lines")


def line_records(path: Path, source: str) -> Records:
    """Yield one text per line. An empty line is an empty text, so that row n is line n, except at the end of the file."""
    rows = 0
    for number, line in text_lines(path, source):
        if text := without_break(line):
            for empty in range(rows + 1, number):
                yield Record(empty, {"text": ""})
            yield Record(number, {"text": text})
            rows = number


FORMATS = (FileFormat((".txt", ".tokens"), open_lines),)  # WikiText is published as .tokens
