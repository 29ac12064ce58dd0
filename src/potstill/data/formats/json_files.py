"""JSON lines: one object per line. Also files that are one JSON object, for formats that are published so."""

from __future__ import annotations

import json
from pathlib import Path

from potstill.data.formats.reading import FileFormat, Opened, Record, Records, short_repr, text_lines
from potstill.errors import InputError

MOST_KEYS = 10_000  # different keys in a JSON lines file: more means that the keys are data
LARGEST = 256 * 2**20  # characters of a file that is read whole
EXAMPLE = 'write JSON lines: one object per line, such as {"text": "a fine film", "label": "positive"}'


def open_json_lines(path: Path, source: str) -> Opened:
    names: dict[str, None] = {}  # every key that occurs, so that a label in the last line alone is a label
    for number, values, _ in json_records(path, source):
        names |= dict.fromkeys(values)
        if len(names) > MOST_KEYS:
            reason = f"more than {MOST_KEYS:,} different keys"
            raise InputError(f"{source}:{number}: {reason}; use the same keys in every line")
    if not names:
        raise InputError(f"{source}:1: the file is empty; {EXAMPLE}")
    return Opened(list(names), lambda _: json_records(path, source), "json lines")


FORMATS = (FileFormat((".jsonl", ".ndjson", ".json"), open_json_lines),)


def json_records(path: Path, source: str) -> Records:
    """Yield one record per line; blank lines are skipped."""
    for number, line in text_lines(path, source):
        if line.strip():
            yield Record(number, parse_object(line.removesuffix("\n"), source, number, EXAMPLE))


def json_object(path: Path, source: str, todo: str) -> dict[str, object]:
    """Read a file that is one JSON object. `todo` ends the error message."""
    lines, size = [], 0
    for _, line in text_lines(path, source, LARGEST):
        lines.append(line)
        size += len(line)
        if size > LARGEST:
            raise InputError(f"{source}: the file has more than {LARGEST:,} characters; write it as JSON lines")
    return parse_object("".join(lines), source, 1, todo)


def parse_object(text: str, source: str, line: int, todo: str) -> dict[str, object]:
    """Parse an object that begins on a line of a file. `todo` ends the error message."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        line, reason = line + error.lineno - 1, f"not JSON ({error.msg})"
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({error})"
    else:
        if isinstance(value, dict):
            return value
        reason = f"{short_repr(value)}, not an object"
    if text.lstrip().startswith("["):
        reason = "a JSON array"
    raise InputError(f"{source}:{line}: this is {reason}; {todo}")


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return values
