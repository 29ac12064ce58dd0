"""One row of any form, and how it is packed into a text, a second text and a label.

Rows of every form are stored, hashed and remembered as texts. What is not a plain text is packed into one, and the
functions below are the only place that knows how:

- The words of a sentence, and the candidates of a multiple-choice question, are joined by a NUL character, which cannot
  occur in a text (`clean_text` replaces it).
- An image has one character per pixel, chr(0) to chr(255).
- In translation and generation the target is the second text itself. The label then only says that there is a target.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PART_SEPARATOR = "\x00"
HAS_TARGET = ""  # the label of a row whose target is its second text


class Span(NamedTuple):
    """An answer of extractive question answering."""

    start: int  # character of the context on which it begins
    text: str


Label = str | tuple[str, ...] | tuple[Span, ...]
"""A class or number as text, several classes, one tag per word, the letter of the right candidate, or answers."""


class Row(NamedTuple):
    """A text with perhaps a second text and a label. What they are in each form of rows, its class in `data.forms` says."""

    line: int  # 1-based, on which the row begins; in Parquet, data sets, SQuAD and folders the number of the record
    text: str
    pair: str | None
    label: Label | None  # None: unlabelled
    answer: tuple[float, ...] | None  # the teacher's logits, (classes or choices,); logarithms if it gave probabilities


def join_parts(parts: Iterable[str]) -> str:
    return PART_SEPARATOR.join(parts)


def split_parts(text: str) -> list[str]:
    return text.split(PART_SEPARATOR)


def pixels_to_text(pixels: bytes) -> str:
    return pixels.decode("latin-1")


def text_to_pixels(text: str) -> bytes:
    return text.encode("latin-1")
