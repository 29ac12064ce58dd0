"""Matches labels with classes. Labels are texts: two different spellings are two labels unless only one class fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from potstill.errors import InputError

# pandas writes 1 as 1.0 if other rows have no label; 007, 1e1 and ² are names
WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
INDEX = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.0+)?")


def loose_spelling(label: str) -> str:
    """Return what a label shares with its other spellings: lower case, and no .0 after a whole number."""
    whole = WHOLE.fullmatch(label)
    return whole[1] if whole else label.lower()


def class_index(label: str) -> int | None:
    """Return the number from 0 that a label is; None if it is not a number."""
    number = INDEX.fullmatch(label)
    return int(number[1]) if number else None


def match_spellings(labels: Iterable[str], numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the class of each label of a file that is not in `numbers` but is another spelling of a label there.

    Only unambiguous labels are matched: no other label of the file has the same loose spelling, and all labels in
    `numbers` with that spelling are one class.
    """
    spellings: dict[str, list[str]] = {}
    for label in set(labels):
        spellings.setdefault(loose_spelling(label), []).append(label)
    classes: dict[str, set[int]] = {}
    for label, number in numbers.items():
        classes.setdefault(loose_spelling(label), set()).add(number)
    unique = {same[0]: classes.get(loose, set()) for loose, same in spellings.items() if len(same) == 1}
    return {label: min(fitting) for label, fitting in unique.items() if label not in numbers and len(fitting) == 1}


def match_indices(labels: Iterable[str], classes: int, source: str) -> dict[str, int] | None:
    """Return the class of each label if every label is the number of a class; refuse two labels with the same number."""
    numbers: dict[str, int] = {}
    for label in sorted(labels):
        number = class_index(label)
        if number is None or number >= classes:
            return None
        same = next((other for other, theirs in numbers.items() if theirs == number), None)
        if same is not None:
            reason = f"the labels '{same}' and '{label}' differ, but are the same class number"
            todo = f"write one of them everywhere, or both in --label-map {same}=CLASS,{label}=CLASS"
            raise InputError(f"{source}: {reason}; {todo}")
        numbers[label] = number
    return numbers


def column_order(names: Iterable[str], wanted: Iterable[str]) -> list[int] | None:
    """Return the position of each wanted name in `names`; None if they are not the same names."""
    positions = {name: position for position, name in enumerate(names)}
    wanted = list(wanted)
    matches = {name: positions[name] for name in wanted if name in positions} | match_spellings(wanted, positions)
    order = [matches[name] for name in wanted if name in matches]
    return order if sorted(order) == list(range(len(wanted))) == list(range(len(positions))) else None
