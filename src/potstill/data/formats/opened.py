"""What every reader of a format returns, and how a module of this package declares its formats.

To add a format, write a module here that has `FORMATS`; `potstill.data.sources` finds it by listing the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ImageShape = tuple[int, int, int]
"""Channels, height, width."""
KnowsColumns = Callable[[list[str]], bool]
"""Tells whether column names make sense, for tables whose file name is misleading."""


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


def no_companions(path: Path) -> list[Path]:
    return []


@dataclass(frozen=True)
class FileFormat:
    """A format of files that is recognised by the ending of their names."""

    endings: tuple[str, ...]  # lower case, without .gz
    open: Callable[[Path, str, KnowsColumns], Opened]  # the path, and the source as the user wrote it for messages
    has_content: Callable[[Path], bool] | None = None  # looks into the file if another format has the same ending
    companions: Callable[[Path], list[Path]] = no_companions  # other files that are read with this one
