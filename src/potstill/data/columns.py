"""Columns of tables: those that the user names, usual names, and those with a teacher's answers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from potstill.errors import InputError

# fmt: off
# usual names in lower case, in the order in which they are looked for
PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
         ("text1", "text2"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text_pair"),
         ("text", "pair"), ("query", "passage"), ("query", "document"))
TEXTS = ("text", "sentence", "review", "content", "comment", "body", "utterance", "question", "title", "tweet",
         "message", "document")
LABELS = ("label", "labels", "score", "sentiment", "class", "category", "target", "intent", "topic", "rating",
          "gold_label")
# fmt: on
ANSWER_LISTS = (("logits", False), ("probabilities", True), ("probs", True))  # name, are they probabilities
ANSWER_PREFIXES = (("logit_", False), ("probability_", True), ("prob_", True))


@dataclass(frozen=True)
class Columns:
    """The columns that hold text, second text and label."""

    text: str | None = None  # None: found by its usual name
    pair: str | None = None
    label: str | tuple[str, ...] | None = None  # a tuple: columns of 0 and 1, one per label
    separator: str | None = None  # separates several labels in one cell
    before: str = ""  # put in front of every text
    choices: str | tuple[str, ...] | None = None  # a column with a list of candidates, or one column per candidate

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def choice_columns(self) -> tuple[str, ...]:
        return (self.choices,) if isinstance(self.choices, str) else self.choices or ()

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [*filter(None, (self.text, self.pair)), *self.label_columns, *self.choice_columns]


class AnswerColumns(NamedTuple):
    """Columns with a teacher's answers."""

    columns: tuple[str, ...]
    are_probabilities: bool
    labels: tuple[str, ...] | None  # one per column; None: the only column holds a list


Names = Mapping[str, str]
"""Column names by their lower case."""


def names_by_lower_case(names: Sequence[str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the column names by their lower case; of "text" and "Text" the first one is taken."""
    lowered = {name.lower(): name for name in reversed(names) if name not in without}
    return lowered | {name: name for name in names if name in lowered and name not in without}


def first_of(names: Names, usual: Sequence[str], used: Sequence[str | None] = ()) -> str | None:
    """Return the first column with a usual name that is not used for something else."""
    return next((names[name] for name in usual if name in names and names[name] not in used), None)


def first_pair_of(names: Names, usual: Sequence[tuple[str, str]]) -> tuple[str | None, str | None]:
    pairs = ((names[first], names[second]) for first, second in usual if first in names and second in names)
    return next(pairs, (None, None))


def unread_label(names: Sequence[str], columns: Columns) -> str | None:
    """Return a column with a usual name for labels that is not used."""
    return first_of(names_by_lower_case(names), LABELS, columns.names)


def list_names(names: Sequence[str]) -> str:
    return f"the columns are {', '.join(repr(name[:60]) for name in names[:20])}{' ...' if len(names) > 20 else ''}"


def check_names(names: Sequence[str], wanted: Columns, hint: str) -> None:
    """Refuse two columns of one name, and names that the user gives but the table does not have."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two columns are called {twice!r}; give each column its own name")
    asked = [("--text", wanted.text), ("--pair", wanted.pair)]
    asked += [("--label", name) for name in wanted.label_columns]
    asked += [("--choices", name) for name in wanted.choice_columns]
    for option, name in asked:
        if name is not None and name not in names:
            close = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
            todo = f"did you mean {option} {close[0]}?" if close else f"write {option} and one of these{hint}"
            raise InputError(f"there is no column {name!r}, {list_names(names)}; {todo}")


def text_columns(names: Names, wanted: Columns) -> Columns:
    text, pair = wanted.text, wanted.pair
    if text is None:
        text, pair = first_pair_of(names, PAIRS)
        text = text or first_of(names, TEXTS)
    return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(names, LABELS, (text, pair)))


def find_answers(names: Sequence[str]) -> AnswerColumns | None:
    """Return the columns with a teacher's logits or probabilities."""
    for usual, are_probabilities in ANSWER_LISTS:
        if column := next((name for name in names if name.lower() == usual), None):
            return AnswerColumns((column,), are_probabilities, None)
    for prefix, are_probabilities in ANSWER_PREFIXES:
        columns = tuple(name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix))
        if columns:
            return AnswerColumns(columns, are_probabilities, tuple(name[len(prefix) :].strip() for name in columns))
    return None
