"""What went wrong, told to the person who can mend it."""

from __future__ import annotations


class InputError(Exception):
    """The user's files, recipe or flags cannot be used as they are. The message ends with what to write instead; exit code 2."""


class TrainingError(Exception):
    """A run cannot go on (a loss that is not a number, a full disk). What was saved stays usable; exit code 1."""
