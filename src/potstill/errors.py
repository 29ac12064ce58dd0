"""The two kinds of error that a user sees."""

from __future__ import annotations


class InputError(Exception):
    """The user's files, recipe or flags cannot be used. The message ends with what to write instead; exit code 2."""


class TrainingError(Exception):
    """A run cannot continue (a loss that is not a number, a full disk). What was saved stays usable; exit code 1."""
