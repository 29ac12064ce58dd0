"""Taggers for tests: quick, and known to everybody."""

from __future__ import annotations

from collections.abc import Sequence


def by_length(words: list[str]) -> list[str]:
    """Short, middle and long words, and those that are no words."""
    return [("S" if len(word) < 4 else "M" if len(word) < 6 else "L") if word.isalpha() else "." for word in words]


def one_too_few(words: Sequence[str]) -> list[str]:
    return ["X"] * (len(words) - 1)
