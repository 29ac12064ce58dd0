"""JSON lines: one object per line. Also files that are one JSON object, for formats that are published so."""

from __future__ import annotations

import json
from pathlib import Path

from potstill.data.formats.opened import FileFormat, KnowsColumns, Opened, Record, Records
from potstill.data.formats.text import short_repr, text_lines
from potstill.errors import InputError

MOST_KEYS = 10_000  # different keys in a JSON lines file: more means that the keys are data
LARGEST = 256 * 2**20  # characters of a file that is read whole
EXAMPLE = 'write JSON lines: one object per line, such as {"text": "a fine film", "label": "positive"}'


def open_json_lines(path: Path, source: str, knows: KnowsColumns) -> Opened:
    return Opened(all_keys(path, source), lambda _: json_records(path, source), "json lines")


FORMATS = (FileFormat((".jsonl", ".ndjson", ".json"), open_json_lines),)


def json_records(path: Path, source: str) -> Records:
    """Yield one record per line; blank lines are skipped."""
    for number, line in text_lines(path, source):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            value, reason = None, f"this is not JSON ({str(error).partition(': line')[0]})"
        else:
            reason = f"this is {str(value)[:60]!r}, not an object"
        if not isinstance(value, dict):
            if line.lstrip().startswith("["):
                reason = "this is a JSON array"
            raise InputError(f"{source}:{number}: {reason}; {EXAMPLE}")
        yield Record(number, value)


def all_keys(path: Path, source: str) -> list[str]:
    """Return every key that occurs, so that a label in the last line alone is a label."""
    names: dict[str, None] = {}
    for number, values, _ in json_records(path, source):
        names |= dict.fromkeys(values)
        if len(names) > MOST_KEYS:
            reason = f"more than {MOST_KEYS:,} different keys"
            raise InputError(f"{source}:{number}: {reason}; use the same keys in every line")
    if not names:
        raise InputError(f"{source}:1: the file is empty; {EXAMPLE}")
    return list(names)


def json_object(path: Path, source: str, todo: str) -> dict[str, object]:
    """Read a file that is one JSON object. `todo` ends the error message."""
    lines, size = [], 0
    for _, line in text_lines(path, source, LARGEST):
        lines.append(line)
        size += len(line)
        if size > LARGEST:
            raise InputError(f"{source}: the file has more than {LARGEST:,} characters; write it as JSON lines")
    try:
        value = json.loads("".join(lines), object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{error.lineno}: this is not JSON ({error.msg}); {todo}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}:1: this is not JSON ({error}); {todo}") from None
    if not isinstance(value, dict):
        raise InputError(f"{source}:1: this is {short_repr(value)}, not an object; {todo}")
    return value


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return values
