"""SQuAD files: one JSON object with articles, paragraphs and questions, which is read whole."""

from __future__ import annotations

import re
from pathlib import Path

from potstill.data.formats.json_files import json_object
from potstill.data.formats.reading import FileFormat, Opened, Record, Records, first_bytes, short_repr
from potstill.errors import InputError

# {"version": "1.1", "data": [{"title": ...
START = re.compile(
    rb'\s*\{(?:\s*"[^"]*"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,)*\s*"data"\s*:\s*\[\s*\{\s*"(?:title|paragraphs)"'
)
NAMES = ["id", "title", "context", "question", "answers", "is_impossible"]
EXAMPLE = 'write {"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [...]}]}]}]}'


def squad_records(path: Path, source: str) -> Records:
    """Yield one record per question, numbered from 1."""
    number = 0

    def objects(parent: dict[str, object], key: str) -> list[dict[str, object]]:
        value = parent.get(key)
        if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
            reason = f"{key!r} is {short_repr(value)}, not a list of objects"
            raise InputError(f"{source}:{number + 1}: {reason}; {EXAMPLE}")
        return value

    for article in objects(json_object(path, source, EXAMPLE), "data"):
        for paragraph in objects(article, "paragraphs"):
            for question in objects(paragraph, "qas"):
                number += 1
                yield Record(number, question | {"title": article.get("title"), "context": paragraph.get("context")})


FORMATS = (
    FileFormat(
        (".json",),
        lambda path, source: Opened(NAMES, lambda _: squad_records(path, source), "squad"),
        has_content=lambda path: START.match(first_bytes(path)) is not None,
    ),
)
