"""What a builder reads of the train texts, by a copy of the network, to see what matters in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from potstill.errors import InputError
from potstill.models.anatomy import longest_input
from potstill.models.builder import BuildContext, Student

BATCH = 16  # texts that are read at once
LONGEST = 128  # tokens of a text that are read


class Reading(NamedTuple):
    """A copy of the student without dropout, and what it is to read."""

    student: Student
    texts: list[str]
    longest: int  # tokens of a text


def reading_of(
    builder: str, current: Student, context: BuildContext, count: int, instead: str = "give rows with text"
) -> Reading:
    """The first `count` train texts. `builder` and `instead` are for the error where there is none."""
    texts = list(islice(context.texts(), count))
    if not texts:
        raise InputError(f"{builder}: there is no text to read; {instead}")
    copied = Student(copy.deepcopy(current.model).eval(), copy.deepcopy(current.tokenizer))
    return Reading(copied, texts, min(LONGEST, longest_input(copied.model, copied.tokenizer)))


def batches(student: Student, texts: Sequence[str], longest: int) -> Iterator[Any]:
    """The arguments of `forward`, with `attention_mask` (batch, tokens)."""
    for start in range(0, len(texts), BATCH):
        some = list(texts[start : start + BATCH])
        batch = student.tokenizer(some, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        yield batch.to(student.model.device)
