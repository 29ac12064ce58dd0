"""Two files with a sentence per line, line n of one beside line n of the other: written FIRST,SECOND."""

from __future__ import annotations

import os
from itertools import zip_longest
from pathlib import Path

from potstill.data.formats.text import Lines, Records, text_lines, without_break
from potstill.errors import InputError

NAMES = ["source", "target"]
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")  # a header or an object is no sentence


def two_files(source: str) -> tuple[Path, Path] | None:
    """Those of a text with one comma, if either exists."""
    if source.count(",") != 1:
        return None
    first, second = (Path(os.path.expanduser(part)) for part in source.split(","))
    if not (first.is_file() or second.is_file()):
        return None
    for path in (first, second):
        if not path.is_file():
            raise InputError(f"{source}: there is no file '{path}'; write both files, with one comma between them")
        if path.name.lower().removesuffix(".gz").endswith(TABLES):
            todo = "give a table of both texts alone, or two files with a sentence per line"
            raise InputError(f"{source}: '{path}' is a table, whose lines are no sentences; {todo}")
    return first, second


def line_pairs(first: Path, second: Path) -> Records:
    """Both texts of each line. Where one is missing all others may stand beside the wrong line, so it is refused."""
    lines, others = text_lines(first, str(first)), text_lines(second, str(second))
    for number, (line, other) in enumerate(zip_longest(lines, others), 1):
        if line is None or other is None:
            shorter, longer, rest = (first, second, others) if line is None else (second, first, lines)
            reason = f"the file has {number - 1} lines, {longer} has {number + remaining(rest)}"
            todo = "give two files in which every line has its translation in the other"
            raise InputError(f"{shorter}:{max(1, number - 1)}: {reason}; {todo}")
        text, target = without_break(line[1]), without_break(other[1])
        if not text.strip() and not target.strip():
            raise InputError(f"{first}:{number}: the line is empty in both files; delete it in both")
        for path, value, beside in ((first, text, second), (second, target, first)):
            if not value.strip():
                reason = f"the line is empty, line {number} of {beside} is not"
                raise InputError(f"{path}:{number}: {reason}; write the text, or delete the line in both files")
        yield number, {"source": text, "target": target}


def remaining(lines: Lines) -> int:
    return sum(1 for _ in lines)
