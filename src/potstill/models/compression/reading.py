"""Texts for a model that is looked at: in batches, truncated, on its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from potstill.models.builder import Student

BATCH = 16  # texts that are read at once


def batches(student: Student, texts: Sequence[str], longest: int) -> Iterator[Any]:
    """The arguments of `forward`, with `attention_mask` (batch, tokens)."""
    for start in range(0, len(texts), BATCH):
        some = list(texts[start : start + BATCH])
        batch = student.tokenizer(some, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        yield batch.to(student.model.device)
