"""Which label is which class. Labels are texts: two that differ in any way are never taken for one class unasked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from potstill.errors import InputError

# 1.0 is how pandas writes a 1 where other rows have no label; 007, 1e1 and ² are names
WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")
INDEX = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.0+)?")


def loose_spelling(label: str) -> str:
    """What a label shares with its other spellings: capitals and the .0 of a whole number are left out."""
    whole = WHOLE.fullmatch(label)
    return whole[1] if whole else label.lower()


def class_index(label: str) -> int | None:
    """The number that a label is, if it is one from 0 on."""
    number = INDEX.fullmatch(label)
    return int(number[1]) if number else None


def match_spellings(labels: Iterable[str], numbers: Mapping[str, int]) -> dict[str, int]:
    """Labels of one file that are no key of `numbers`, but another spelling of one -> its class.

    Only where it is unambiguous: no other label of the file is spelt like it, and all keys spelt like it are one class.
    """
    spelt: dict[str, list[str]] = {}
    for label in set(labels):
        spelt.setdefault(loose_spelling(label), []).append(label)
    known: dict[str, set[int]] = {}
    for label, number in numbers.items():
        known.setdefault(loose_spelling(label), set()).add(number)
    single = {same[0]: known.get(form, set()) for form, same in spelt.items() if len(same) == 1}
    return {label: min(classes) for label, classes in single.items() if label not in numbers and len(classes) == 1}


def match_indices(labels: Iterable[str], classes: int, source: str) -> dict[str, int] | None:
    """Label -> class, if every label is the number of a class; refused if two of them are the same number."""
    found: dict[str, int] = {}
    for label in sorted(labels):
        number = class_index(label)
        if number is None or number >= classes:
            return None
        same = next((other for other, theirs in found.items() if theirs == number), None)
        if same is not None:
            raise InputError(
                f"{source}: '{same}' and '{label}' are two labels, but one number of a class; "
                f"write one of them everywhere, or both in --label-map {same}=CLASS,{label}=CLASS"
            )
        found[label] = number
    return found


def column_order(names: Iterable[str], wanted: Iterable[str]) -> list[int] | None:
    """Where each of the wanted names stands among as many names; None if they are not the same ones."""
    numbers = {name: place for place, name in enumerate(names)}
    wanted = list(wanted)
    found = {**{name: numbers[name] for name in wanted if name in numbers}, **match_spellings(wanted, numbers)}
    places = [found[name] for name in wanted if name in found]
    return places if sorted(places) == list(range(len(wanted))) == list(range(len(numbers))) else None
