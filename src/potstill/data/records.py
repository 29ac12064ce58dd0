"""What one record says: a text, words with tags, answers with their places, candidates with the right one, two texts.

Each `read_` gives the text, the second text and the label of a row, or refuses the record at its place.
"""

from __future__ import annotations

import json
import math
import re
import string
from typing import Any

from potstill.data.columns import BETWEEN, MOST_CHOICES, AnswerColumns, Columns, Label, Span
from potstill.data.formats.text import LONGEST, clean_text, short_repr
from potstill.errors import InputError

Record = dict[str, object]
LETTERS = string.ascii_uppercase  # of candidates
GAP = re.compile("_+")  # in a question, for the candidate to stand there
Parts = tuple[str, str | None, Label | None]  # text, second text, label


def read_plain(record: Record, columns: Columns, where: str) -> Parts:
    assert columns.text is not None  # open_table resolved it
    pair = None if columns.pair is None else read_text(record, columns.pair, where)
    return read_text(record, columns.text, where), pair, read_label(record, columns, where)


def read_pixels(record: Record, columns: Columns, where: str) -> Parts:
    """The image as a text of its pixels, as `potstill.images` gives it."""
    return str(record[str(columns.text)]), None, read_label(record, columns, where)


def given(record: Record, columns: Columns) -> object:
    """The value of the one column that holds tags, answers or the right candidate."""
    return record.get(columns.label) if isinstance(columns.label, str) else None


def read_words(record: Record, columns: Columns, where: str) -> Parts:
    """Words between BETWEEN, and a tag each. A list, or a text that is cut at its spaces."""
    assert columns.text is not None
    value = record.get(columns.text)
    words = value.split(" ") if isinstance(value, str) and value else value or []
    if not isinstance(words, list):
        raise InputError(f"{where}: {columns.text!r} is {short_repr(value)}, not words; write a list of them")
    if not words:
        raise InputError(f"{where}: there are no words in {columns.text!r}; write at least one, or delete the row")
    for number, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise InputError(f"{where}: word {number} is {short_repr(word)}, not a text; write it in quotes")
        if not word.strip():
            todo = "write one space between words" if isinstance(value, str) else "write it, or leave it out"
            raise InputError(f"{where}: word {number} of {len(words)} is empty; {todo}")
    return BETWEEN.join(map(clean_text, words)), None, read_tags(record, columns, len(words), where)


def read_tags(record: Record, columns: Columns, words: int, where: str) -> tuple[str, ...] | None:
    value = given(record, columns)
    tags = value.strip().split(" ") if isinstance(value, str) and value.strip() else value
    if tags is None or isinstance(tags, str):
        return None
    if not isinstance(tags, list):
        raise InputError(
            f"{where}: {columns.label!r} is {short_repr(value)}, not tags; write a list of one tag per word"
        )
    if all(tag is None for tag in tags):  # -1 of a data set for every word of a row without tags
        return None
    if len(tags) != words:
        reason = f"there are {words} {'word' if words == 1 else 'words'}, but {len(tags)} in {columns.label!r}"
        raise InputError(f"{where}: {reason}; write one tag per word")
    named = tuple("" if tag is None else canonical(tag, where) for tag in tags)
    if "" in named:
        raise InputError(f"{where}: word {named.index('') + 1} has no tag; write one, or none for the whole row")
    return named


def read_spans(record: Record, columns: Columns, where: str) -> Parts:
    """Question, context, and the answers with the places in the context where they begin."""
    assert columns.text is not None and columns.pair is not None
    question, context = read_text(record, columns.text, where), read_text(record, columns.pair, where)
    if str(record.get("is_impossible")).strip().lower() in ("true", "1"):
        reason = "the question has no answer ('is_impossible'), which is not supported"
        raise InputError(f"{where}: {reason}; leave such rows out")
    value = given(record, columns)
    if isinstance(value, dict):
        texts, starts = in_list(value.get("text")), in_list(value.get("answer_start"))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts: list[dict[str, object]] = [part if isinstance(part, dict) else {"text": part} for part in value]
        texts, starts = [part.get("text") for part in parts], [part.get("answer_start") for part in parts]
    else:
        texts = in_list(value)
        starts = in_list(record.get("answer_starts")) or in_list(record.get("answer_start"))
    if starts and len(starts) != len(texts):
        reason = f"there are {len(texts)} answers, but {len(starts)} places where they begin"
        raise InputError(f"{where}: {reason}; write one place per answer, or none at all")
    pairs = zip(texts, starts or [None] * len(texts), strict=True)
    return question, context, tuple(read_span(text, start, context, where) for text, start in pairs) or None


def in_list(value: object) -> list[object]:
    """One value is a list of one; nothing is none."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    return value if isinstance(value, list) else [value]


def read_span(text: object, start: object, context: str, where: str) -> Span:
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{where}: an answer is {short_repr(text)}; write the words of the context that answer the question"
        )
    text = clean_text(text)
    if start is None:
        if (found := context.find(text)) < 0:
            raise InputError(
                f"{where}: the answer {short_repr(text)} is not in the context; write it as it stands there"
            )
        return Span(found, text)
    place = canonical(start, where)
    if not re.fullmatch(r"-?[0-9]{1,18}", place):
        raise InputError(
            f"{where}: an answer begins at {short_repr(start)}; write the number of its first character, from 0"
        )
    there = context[int(place) : int(place) + len(text)] if int(place) >= 0 else ""
    if there != text:
        reason = f"at character {place} of the context stands {short_repr(there)}, not the answer {short_repr(text)}"
        raise InputError(f"{where}: {reason}; mend the place (counted from 0), or leave all places out")
    return Span(int(place), text)


def read_choices(record: Record, columns: Columns, where: str) -> Parts:
    """Passage, the question with each candidate between BETWEEN, and the letter of the right one."""
    candidates, names = read_candidates(record, columns, where)
    passage, question = (
        "" if column is None or record.get(column) is None else read_text(record, column, where)
        for column in (columns.text, columns.pair)
    )
    right = read_right_one(given(record, columns), candidates, names, where)
    return passage, BETWEEN.join(fill_candidate(question, candidate) for candidate in candidates), right


def fill_candidate(question: str, candidate: str) -> str:
    """The candidate in the question's first gap, or after the question."""
    if gap := GAP.search(question):
        return (question[: gap.start()] + candidate + question[gap.end() :]).strip()
    return f"{question} {candidate}".strip()


def read_candidates(record: Record, columns: Columns, where: str) -> tuple[list[str], list[object]]:
    """The candidates, and what they are called if they say it themselves."""
    names: object = []
    if isinstance(columns.choices, tuple):
        value: object = [record.get(name) for name in columns.choices]
    else:
        value = record.get(str(columns.choices))
        if isinstance(value, dict):  # {"text": [...], "label": ["A", ...]}
            names, value = value.get("label") or [], value.get("text")
    if not isinstance(value, list):
        raise InputError(f"{where}: {columns.choices!r} is {short_repr(value)}, not a list; write a list of candidates")
    if not 2 <= len(value) <= MOST_CHOICES:
        raise InputError(f"{where}: there are {len(value)} candidates; write from 2 to {MOST_CHOICES}")
    for letter, candidate in zip(LETTERS, value, strict=False):
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"{where}: candidate {letter} is {short_repr(candidate)}; write it as a text")
    if not isinstance(names, list) or len(names) not in (0, len(value)):
        raise InputError(f"{where}: {short_repr(names)} are no names of {len(value)} candidates; write one for each")
    return [clean_text(candidate) for candidate in value], names


def read_right_one(value: object, candidates: list[str], names: list[object], where: str) -> str | None:
    """The letter of the candidate that is meant by its name, letter, number from 0 or text."""
    if value is None or not (meant := canonical(value, where)):
        return None
    if names:
        found = [index for index, name in enumerate(names) if canonical(name, where) == meant]
    else:
        number = int(meant) if re.fullmatch("[0-9]{1,9}", meant) else LETTERS.find(meant) if len(meant) == 1 else -1
        found = [index for index, text in enumerate(candidates) if text.strip() == meant]
        if 0 <= number < len(candidates) and not (isinstance(value, str) and found):
            found = [number]
        elif 0 <= number < len(candidates) and found != [number]:  # "2" of the candidates "2", "1", "0"
            found = []
    if len(found) != 1:
        last = len(candidates) - 1
        ways = f"a letter from A to {LETTERS[last]}, a number from 0 to {last}, or the text of exactly one"
        todo = f"one of {short_repr(names)}" if names else ways
        raise InputError(
            f"{where}: {short_repr(value)} does not say which of {last + 1} candidates is right; write {todo}"
        )
    return LETTERS[found[0]]


def read_translation(record: Record, columns: Columns, where: str) -> Parts:
    """The text, its translation or "", and "" as the label of what has a translation."""
    assert columns.text is not None
    text = read_text(record, columns.text, where)
    if columns.pair is None:
        return text, "", None
    if not text.strip():
        reason = f"{columns.text!r} is empty, so there is nothing to be translated"
        raise InputError(f"{where}: {reason}; write the text, or delete the row")
    target = read_target(record, columns.pair, where)
    return text, target, "" if target else None


def read_writing(record: Record, columns: Columns, where: str) -> Parts:
    """The prompt or "", the text to be written or "", and "" as the label where there is one."""
    if columns.text is None:
        return "", read_text(record, str(columns.pair), where), ""
    prompt = read_text(record, columns.text, where)
    if columns.pair is None:
        return prompt, "", None
    target = read_target(record, columns.pair, where)
    if not prompt.strip() and not target:
        reason = f"{columns.text!r} and {columns.pair!r} are both empty"
        raise InputError(f"{where}: {reason}; write one of them, or delete the row")
    return prompt, target, "" if target else None


def read_target(record: Record, column: str, where: str) -> str:
    """Empty, null or missing like a label that is not there."""
    value = record.get(column)
    return "" if value is None or (isinstance(value, str) and not value.strip()) else read_text(record, column, where)


def read_text(record: Record, column: str, where: str) -> str:
    value = record.get(column)
    if isinstance(value, str):
        if len(value) > LONGEST:
            reason = f"{column!r} has {len(value):,} characters, more than the {LONGEST:,} that a text may have"
            raise InputError(f"{where}: {reason}; cut it into parts")
        return clean_text(value)
    if column not in record:
        raise InputError(f"{where}: there is no {column!r}; write the text, or delete the row")
    raise InputError(f"{where}: {column!r} is {short_repr(value)}, not a text; write it in quotes, or delete the row")


def canonical(value: object, where: str) -> str:
    """A text as it is, without the space around it; a number as it is written by hand, 1.0 as 1."""
    if isinstance(value, str):
        return clean_text(value.strip())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise InputError(f"{where}: {short_repr(value)} is not a label; write a text or a number, or leave it empty")


def read_label(record: Record, columns: Columns, where: str) -> str | tuple[str, ...] | None:
    if columns.label is None:
        return None
    if isinstance(columns.label, tuple):
        return marked_labels(record, columns.label, where)
    value = record.get(columns.label)
    if isinstance(value, str) and columns.separator and value.strip():
        return tuple(canonical(part, where) for part in value.split(columns.separator) if part.strip())
    if isinstance(value, list):
        labels = tuple(canonical(part, where) for part in value)
        if "" in labels:
            raise InputError(
                f"{where}: one of the labels {short_repr(value)} is empty; write its name, or leave it out"
            )
        return labels
    return None if value is None else canonical(value, where) or None


def marked_labels(record: Record, names: tuple[str, ...], where: str) -> tuple[str, ...] | None:
    """Names of the columns that hold 1; None where all are empty."""
    marks = [canonical("" if (value := record.get(name)) is None else value, where).lower() for name in names]
    if not any(marks):
        return None
    for name, mark in zip(names, marks, strict=True):
        if mark not in ("0", "1", "false", "true"):
            raise InputError(f"{where}: {name!r} is {short_repr(record.get(name))}; a column per label holds 0 or 1")
    return tuple(name for name, mark in zip(names, marks, strict=True) if mark in ("1", "true"))


def read_answer(record: Record, answers: AnswerColumns, where: str) -> tuple[float, ...] | None:
    """The teacher's logits; of probabilities their logarithm, whose softmax gives them back."""
    cells = [record.get(name) for name in answers.columns]
    if all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells):
        return None
    try:
        parts = cells if answers.labels else json.loads(cells[0]) if isinstance(cells[0], str) else cells[0]
        numbers = tuple(map(finite, parts)) if isinstance(parts, list) else ()
        if not numbers:
            raise ValueError
    except (ValueError, TypeError, OverflowError, RecursionError):
        todo = "a list of finite numbers, such as [0.1, -2.3]" if answers.labels is None else "a finite number in each"
        found = short_repr(cells[0] if len(cells) == 1 else cells)
        raise InputError(f"{where}: {found} in {', '.join(answers.columns)[:200]} is no answer; write {todo}") from None
    if not answers.are_probabilities:
        return numbers
    if min(numbers) < 0 or abs(math.fsum(numbers) - 1) > 1e-3:
        reason = f"the probabilities {short_repr(list(numbers))} are below 0 or do not sum to 1"
        raise InputError(f"{where}: {reason}; mend them, or call the column logits if that is what they are")
    return tuple(math.log(max(number, 1e-12)) for number in numbers)


def finite(cell: Any) -> float:
    if isinstance(cell, bool) or not math.isfinite(float(cell)):
        raise ValueError
    return float(cell)
