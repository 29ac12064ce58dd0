"""Questions with their answers in a context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from potstill.data.columns import LABELS, Columns, Names, first_of
from potstill.data.formats.reading import clean_text, short_repr
from potstill.data.forms.base import FirstValues, RowForm
from potstill.data.records import Parts, Values, canonical, label_value, read_text
from potstill.data.row import Span
from potstill.errors import InputError

QUESTIONS, CONTEXTS, ANSWERS = ("question", "query"), ("context", "passage"), ("answers", "answer")


class Answers(RowForm):
    """text: question; pair: context; label: answers in the context"""

    order = 2
    deciding = ANSWERS
    needed = (("text", "questions"), ("pair", "contexts"))
    questions = True
    beside = ("answer_starts", "answer_start", "is_impossible")

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        named = wanted.text, wanted.pair, wanted.label
        usual = [names.get(name) for name in ("question", "context", "answers")]
        if all(usual) and all(column in (None, name) for column, name in zip(named, usual, strict=True)):
            labelled = wanted.label is None and first_of(names, LABELS)  # then "answers" is read only if it is a list
            return not labelled or isinstance(first.get(str(usual[2])), list | dict)
        label = first.get(wanted.label) if isinstance(wanted.label, str) else None
        spans = label if isinstance(label, list) and label else [label]
        has_spans = all(isinstance(span, dict) and "answer_start" in span for span in spans)
        return bool(wanted.text and wanted.pair and has_spans)

    def find(self, names: Names, wanted: Columns) -> Columns:
        text = wanted.text or first_of(names, QUESTIONS, (wanted.pair,))
        pair = wanted.pair or first_of(names, CONTEXTS, (text,))
        return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(names, ANSWERS, (text, pair)))

    def read(self, values: Values, columns: Columns) -> Parts:
        """Read question, context, and the answers with the positions in the context where they begin."""
        question, context = read_text(values, columns.text), read_text(values, columns.pair)
        if str(values.get("is_impossible")).strip().lower() in ("true", "1"):
            raise InputError("the question has no answer ('is_impossible'), which is not supported; omit such rows")
        value = label_value(values, columns)
        if isinstance(value, dict):
            texts, starts = as_list(value.get("text")), as_list(value.get("answer_start"))
        elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
            parts: list[dict[str, object]] = [part if isinstance(part, dict) else {"text": part} for part in value]
            texts, starts = [part.get("text") for part in parts], [part.get("answer_start") for part in parts]
        else:
            texts, starts = as_list(value), as_list(values.get("answer_starts")) or as_list(values.get("answer_start"))
        if starts and len(starts) != len(texts):
            count = f"there are {len(texts)} answers, but {len(starts)} positions where they begin"
            raise InputError(f"{count}; write one position per answer, or none at all")
        pairs = zip(texts, starts or [None] * len(texts), strict=True)
        return question, context, tuple(read_span(text, start, context) for text, start in pairs) or None


def as_list(value: object) -> list[object]:
    """Return a list; a single value becomes a list of one, an empty value an empty list."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    return value if isinstance(value, list) else [value]


def read_span(text: object, start: object, context: str) -> Span:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"an answer is {short_repr(text)}; write the words of the context that answer the question")
    text = clean_text(text)
    if start is None:
        if (first := context.find(text)) < 0:
            raise InputError(f"the answer {short_repr(text)} is not in the context; copy it from there")
        return Span(first, text)
    position = canonical(start)
    if not re.fullmatch(r"-?[0-9]{1,18}", position):
        raise InputError(f"an answer begins at {short_repr(start)}; write the number of its first character, from 0")
    there = context[int(position) : int(position) + len(text)] if int(position) >= 0 else ""
    if there != text:
        reason = f"at character {position} the context has {short_repr(there)}, not the answer {short_repr(text)}"
        raise InputError(f"{reason}; correct the position (counted from 0), or omit all positions")
    return Span(int(position), text)
