"""Questions with candidates, of which one is right."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, takewhile

from potstill.data.columns import Columns, Names, first_of
from potstill.data.formats.reading import clean_text, short_repr
from potstill.data.forms.base import FirstValues, RowForm
from potstill.data.records import Parts, Values, canonical, label_value, read_text
from potstill.data.row import Row, join_parts, split_parts
from potstill.errors import InputError

MOST_CHOICES = 26  # candidates of a question: each is named by a letter
LETTERS = string.ascii_uppercase  # names of candidates
GAP = re.compile("_+")  # in a question, where the candidate goes
CANDIDATES = ("choices", "options", "candidates", "endings")
NUMBERED_CANDIDATES = ("ending", "choice")  # one column per candidate, counted from 0 or 1
LETTERED_CANDIDATES = ("opa", "opb", "opc", "opd")
PASSAGES = ("article", "passage", "context", "text", "sent1", "premise")
QUESTIONS = ("question", "query", "sent2", "questions")  # "questions" is RACE's name
RIGHT_CANDIDATES = ("answer", "answerkey", "label", "gold", "answer_idx", "answers")


class Choices(RowForm):
    """text: passage, "" if none; pair: question with each candidate, joined; label: letter of the right candidate"""

    order = 1
    deciding = CANDIDATES
    needed = (("choices", "candidates"),)
    teacher_answers = True
    candidates = True
    questions = True

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        lists = (first.get(names[name]) for name in CANDIDATES if name in names)
        return bool(wanted.choices or candidate_columns(names)) or any(
            isinstance(value, list | dict) for value in lists
        )

    def find(self, names: Names, wanted: Columns) -> Columns:
        """A passage may be missing, or a question, but not both."""
        choices = wanted.choices or first_of(names, CANDIDATES) or candidate_columns(names) or None
        columns = replace(wanted, choices=choices)
        pair = wanted.pair or first_of(names, QUESTIONS, (wanted.text, *columns.choice_columns))
        text = wanted.text or first_of(names, PASSAGES, (pair, *columns.choice_columns))
        label = wanted.label or first_of(names, RIGHT_CANDIDATES, (text, pair, *columns.choice_columns))
        return replace(columns, text=text, pair=pair, label=label)

    def also_missing(self, columns: Columns) -> list[tuple[str, str]]:
        return [] if columns.text or columns.pair else [("--text or --pair", "passages or questions")]

    def read(self, values: Values, columns: Columns) -> Parts:
        """Read the passage, the question with each candidate, and the letter of the right candidate."""
        candidates, names = read_candidates(values, columns)
        passage, question = (
            "" if column is None or values.get(column) is None else read_text(values, column)
            for column in (columns.text, columns.pair)
        )
        letter = right_candidate(label_value(values, columns), candidates, names)
        return passage, join_parts(fill_candidate(question, candidate) for candidate in candidates), letter

    def count_candidates(self, row: Row) -> int:
        return len(split_parts(str(row.pair)))


def candidate_columns(names: Names) -> tuple[str, ...]:
    """Return the columns that hold one candidate each."""
    for prefix in NUMBERED_CANDIDATES:
        for start in (0, 1):
            numbered = list(takewhile(names.__contains__, (f"{prefix}{number}" for number in count(start))))
            if len(numbered) > 1:
                return tuple(names[name] for name in numbered)
    if all(name in names for name in LETTERED_CANDIDATES):
        return tuple(names[name] for name in LETTERED_CANDIDATES)
    return ()


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
