"""Reads the text, the second text and the label of a row out of one record.

There is one `read_` function per form of rows. `potstill.data.row` says what text, second text and label are in each.
Errors do not say where the record is: the caller knows that.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable
from typing import Any

from potstill.data.columns import MOST_CHOICES, AnswerColumns, Columns
from potstill.data.formats.reading import LONGEST, clean_text, short_repr
from potstill.data.row import HAS_TARGET, Label, Span, join_parts, pixels_to_text
from potstill.errors import InputError
from potstill.recipe.task_words import Form

Values = dict[str, object]
"""The values of a record by column name."""
Parts = tuple[str, str | None, Label | None]
"""Text, second text, label."""
LETTERS = string.ascii_uppercase  # names of candidates
GAP = re.compile("_+")  # in a question, where the candidate goes


def read_plain(values: Values, columns: Columns) -> Parts:
    pair = None if columns.pair is None else read_text(values, columns.pair)
    return read_text(values, columns.text), pair, read_label(values, columns)


def read_pixels(values: Values, columns: Columns) -> Parts:
    pixels = values[str(columns.text)]
    assert isinstance(pixels, bytes)  # `open_table` takes only columns of images
    return pixels_to_text(pixels), None, read_label(values, columns)


def read_words(values: Values, columns: Columns) -> Parts:
    """Read a list of words, or a text that is split at its spaces, and one tag per word."""
    value = values.get(str(columns.text))
    words = value.split(" ") if isinstance(value, str) and value else value or []
    if not isinstance(words, list):
        raise InputError(f"{columns.text!r} is {short_repr(value)}, not words; write a list of them")
    if not words:
        raise InputError(f"there are no words in {columns.text!r}; write at least one, or delete the row")
    for number, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise InputError(f"word {number} is {short_repr(word)}, not a text; write it in quotes")
        if not word.strip():
            todo = "write one space between words" if isinstance(value, str) else "write it, or omit it"
            raise InputError(f"word {number} of {len(words)} is empty; {todo}")
    return join_parts(map(clean_text, words)), None, read_tags(values, columns, len(words))


def read_tags(values: Values, columns: Columns, words: int) -> tuple[str, ...] | None:
    value = label_value(values, columns)
    tags = value.strip().split(" ") if isinstance(value, str) and value.strip() else value
    if tags is None or isinstance(tags, str):
        return None
    if not isinstance(tags, list):
        raise InputError(f"{columns.label!r} is {short_repr(value)}, not tags; write a list of one tag per word")
    if all(tag is None for tag in tags):  # a data set has -1 for every word of a row without tags
        return None
    if len(tags) != words:
        count = f"{words} {'word' if words == 1 else 'words'}"
        raise InputError(f"there are {count}, but {len(tags)} in {columns.label!r}; write one tag per word")
    texts = tuple("" if tag is None else canonical(tag) for tag in tags)
    if "" in texts:
        raise InputError(f"word {texts.index('') + 1} has no tag; write one, or none for the whole row")
    return texts


def label_value(values: Values, columns: Columns) -> object:
    """Return the value of the only column that holds tags, answers or the right candidate."""
    return values.get(columns.label) if isinstance(columns.label, str) else None


def read_spans(values: Values, columns: Columns) -> Parts:
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


def read_choices(values: Values, columns: Columns) -> Parts:
    """Read the passage, the question with each candidate, and the letter of the right candidate."""
    candidates, names = read_candidates(values, columns)
    passage, question = (
        "" if column is None or values.get(column) is None else read_text(values, column)
        for column in (columns.text, columns.pair)
    )
    letter = right_candidate(label_value(values, columns), candidates, names)
    return passage, join_parts(fill_candidate(question, candidate) for candidate in candidates), letter


def fill_candidate(question: str, candidate: str) -> str:
    """Put the candidate into the question's first gap, or behind the question."""
    if gap := GAP.search(question):
        return (question[: gap.start()] + candidate + question[gap.end() :]).strip()
    return f"{question} {candidate}".strip()


def read_candidates(values: Values, columns: Columns) -> tuple[list[str], list[object]]:
    """Read the candidates, and their names if the column has them."""
    names: object = []
    if isinstance(columns.choices, tuple):
        value: object = [values.get(name) for name in columns.choices]
    else:
        value = values.get(str(columns.choices))
        if isinstance(value, dict):  # {"text": [...], "label": ["A", ...]}
            names, value = value.get("label") or [], value.get("text")
    if not isinstance(value, list):
        raise InputError(f"{columns.choices!r} is {short_repr(value)}, not a list; write a list of candidates")
    if not 2 <= len(value) <= MOST_CHOICES:
        raise InputError(f"there are {len(value)} candidates; write from 2 to {MOST_CHOICES}")
    for letter, candidate in zip(LETTERS, value, strict=False):
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"candidate {letter} is {short_repr(candidate)}; write it as a text")
    if not isinstance(names, list) or len(names) not in (0, len(value)):
        raise InputError(f"{short_repr(names)} do not name {len(value)} candidates; write one name for each")
    return [clean_text(candidate) for candidate in value], names


def right_candidate(value: object, candidates: list[str], names: list[object]) -> str | None:
    """Return the letter of the right candidate, which is given by its name, letter, number from 0 or text."""
    if value is None or not (answer := canonical(value)):
        return None
    if names:
        matches = [index for index, name in enumerate(names) if canonical(name) == answer]
    else:
        number = int(answer) if re.fullmatch("[0-9]{1,9}", answer) else LETTERS.find(answer) if len(answer) == 1 else -1
        matches = [index for index, text in enumerate(candidates) if text.strip() == answer]
        if 0 <= number < len(candidates) and not (isinstance(value, str) and matches):
            matches = [number]
        elif 0 <= number < len(candidates) and matches != [number]:  # "2" of the candidates "2", "1", "0"
            matches = []
    if len(matches) != 1:
        last = len(candidates) - 1
        ways = f"a letter from A to {LETTERS[last]}, a number from 0 to {last}, or the text of exactly one"
        reason = f"{short_repr(value)} does not say which of {last + 1} candidates is right"
        raise InputError(f"{reason}; write {f'one of {short_repr(names)}' if names else ways}")
    return LETTERS[matches[0]]


def read_translation(values: Values, columns: Columns) -> Parts:
    text = read_text(values, columns.text)
    if columns.pair is None:
        return text, "", None
    if not text.strip():
        raise InputError(f"{columns.text!r} is empty, with nothing to translate; write the text, or delete the row")
    target = read_target(values, columns.pair)
    return text, target, HAS_TARGET if target else None


def read_writing(values: Values, columns: Columns) -> Parts:
    if columns.text is None:
        return "", read_text(values, columns.pair), HAS_TARGET
    prompt = read_text(values, columns.text)
    if columns.pair is None:
        return prompt, "", None
    target = read_target(values, columns.pair)
    if not prompt.strip() and not target:
        raise InputError(f"{columns.text!r} and {columns.pair!r} are both empty; write one of them, or delete the row")
    return prompt, target, HAS_TARGET if target else None


READERS: dict[Form, Callable[[Values, Columns], Parts]] = {
    "text": read_plain,
    "words": read_words,
    "answers": read_spans,
    "choices": read_choices,
    "pixels": read_pixels,
    "translation": read_translation,
    "writing": read_writing,
}


def read_target(values: Values, column: str) -> str:
    """Return the target text; "" if it is empty, null or missing."""
    value = values.get(column)
    return "" if value is None or (isinstance(value, str) and not value.strip()) else read_text(values, column)


def read_text(values: Values, column: str | None) -> str:
    value = values.get(str(column))
    if isinstance(value, str):
        if len(value) > LONGEST:
            raise InputError(f"{column!r} has {len(value):,} characters, more than {LONGEST:,}; split the text")
        return clean_text(value)
    if column not in values:
        raise InputError(f"there is no {column!r}; write the text, or delete the row")
    raise InputError(f"{column!r} is {short_repr(value)}, not a text; write it in quotes, or delete the row")


def canonical(value: object) -> str:
    """Return a label as text: without the spaces around it, and a number as it is written by hand, 1.0 as 1."""
    if isinstance(value, str):
        return clean_text(value.strip())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise InputError(f"{short_repr(value)} is not a label; write a text or a number, or leave it empty")


def read_label(values: Values, columns: Columns) -> str | tuple[str, ...] | None:
    if isinstance(columns.label, tuple):
        return marked_labels(values, columns.label)
    value = label_value(values, columns)
    if isinstance(value, str) and columns.separator and value.strip():
        return tuple(canonical(part) for part in value.split(columns.separator) if part.strip())
    if isinstance(value, list):
        labels = tuple(canonical(part) for part in value)
        if "" in labels:
            raise InputError(f"one of the labels {short_repr(value)} is empty; write its name, or omit it")
        return labels
    return None if value is None else canonical(value) or None


def marked_labels(values: Values, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of the columns that hold 1; None if all are empty."""
    marks = {name: canonical("" if values.get(name) is None else values[name]).lower() for name in names}
    if not any(marks.values()):
        return None
    for name, mark in marks.items():
        if mark not in ("0", "1", "false", "true"):
            raise InputError(f"{name!r} is {short_repr(values.get(name))}; write 0 or 1 in a column per label")
    return tuple(name for name, mark in marks.items() if mark in ("1", "true"))


def read_answer(values: Values, answers: AnswerColumns) -> tuple[float, ...] | None:
    """Return the teacher's logits; for probabilities their logarithm, whose softmax gives the probabilities back."""
    cells = [values.get(name) for name in answers.columns]
    if all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells):
        return None
    try:
        parts = cells if answers.labels else json.loads(cells[0]) if isinstance(cells[0], str) else cells[0]
        numbers = tuple(map(finite, parts)) if isinstance(parts, list) else ()
        if not numbers:
            raise ValueError
    except (ValueError, TypeError, OverflowError, RecursionError):
        todo = "a list of finite numbers, such as [0.1, -2.3]" if answers.labels is None else "a finite number in each"
        content = short_repr(cells[0] if len(cells) == 1 else cells)
        raise InputError(f"{content} in {', '.join(answers.columns)[:200]} is not an answer; write {todo}") from None
    if not answers.are_probabilities:
        return numbers
    if min(numbers) < 0 or abs(math.fsum(numbers) - 1) > 1e-3:
        reason = f"the probabilities {short_repr(list(numbers))} are below 0 or do not sum to 1"
        raise InputError(f"{reason}; correct them, or call the column logits if that is what they are")
    return tuple(math.log(max(number, 1e-12)) for number in numbers)


def finite(cell: Any) -> float:
    if isinstance(cell, bool) or not math.isfinite(float(cell)):
        raise ValueError
    return float(cell)
