"""Translations: two text files, written FIRST,SECOND, or one column that holds all languages.

Line n of one file is the translation of line n of the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from potstill.data.formats.reading import Opened, Record, Records, short_repr, text_lines, without_break
from potstill.errors import InputError

NAMES = ["source", "target"]
LANGUAGES = "translation"  # a column that holds {"en": ..., "de": ...}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")  # their lines are not sentences


def two_files(source: str) -> tuple[Path, Path] | None:
    """Return the two files that a source with one comma names; None if neither exists."""
    if source.count(",") != 1:
        return None
    first, second = (Path(os.path.expanduser(part)) for part in source.split(","))
    if not (first.is_file() or second.is_file()):
        return None
    for path in (first, second):
        if not path.is_file():
            raise InputError(f"{source}: there is no file '{path}'; write both files, with one comma between them")
        if path.name.lower().removesuffix(".gz").endswith(TABLES):
            reason = f"'{path}' is a table, and its lines are not sentences"
            raise InputError(f"{source}: {reason}; give one table with both texts, or two text files")
    return first, second


def line_pairs(first: Path, second: Path) -> Records:
    """Yield both texts of each line. A missing line is refused, because all later lines could have the wrong partner."""
    lines, others = text_lines(first, str(first)), text_lines(second, str(second))
    for number, (line, other) in enumerate(zip_longest(lines, others), 1):
        if line is None or other is None:
            shorter, longer, rest = (first, second, others) if line is None else (second, first, lines)
            reason = f"the file has {number - 1} lines, {longer} has {number + sum(1 for _ in rest)}"
            raise InputError(f"{shorter}:{max(1, number - 1)}: {reason}; give each line its translation")
        text, target = without_break(line[1]), without_break(other[1])
        if not text.strip() and not target.strip():
            raise InputError(f"{first}:{number}: the line is empty in both files; delete it in both")
        if not text.strip() or not target.strip():
            path, partner = (second, first) if text.strip() else (first, second)
            reason = f"the line is empty, but line {number} of {partner} is not"
            raise InputError(f"{path}:{number}: {reason}; write the text, or delete the line in both files")
        yield Record(number, {"source": text, "target": target})


def split_languages(opened: Opened, source: str) -> tuple[Opened, list[str]]:
    """Return a source with one column per language if one column holds {"en": ..., "de": ...}, and the languages."""
    column = next((name for name in opened.names if name.lower() == LANGUAGES), "")
    first = next(opened.records([column]), None) if column else None
    languages = first.values.get(column) if first else None
    if not isinstance(languages, dict):
        return opened, []
    others = [name for name in opened.names if name != column]

    def records(needed: Sequence[str]) -> Records:
        for record in opened.records([*(name for name in needed if name in others), column]):
            texts = record.values.get(column)
            if not isinstance(texts, dict):
                reason = f"{column!r} is {short_repr(texts)}, not a text per language"
                raise InputError(f'{record.where(source)}: {reason}; write {{"en": "...", "de": "..."}}')
            yield record._replace(values=record.values | texts)

    return opened._replace(names=[*languages, *others], records=records), list(languages)
