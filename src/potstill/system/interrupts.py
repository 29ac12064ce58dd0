"""SIGTERM and SIGINT end a run at a step's end, after a checkpoint; a second SIGINT ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NOTED = (signal.SIGINT, signal.SIGTERM)
_asked: list[int] = []


class Interrupted(Exception):
    """Raised when the checkpoint is written; `code` is what the process exits with: 130 or 143."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (self.code - 128,)  # to be told to other ranks


def asked() -> int | None:
    """The signal that asked this process to end, or None."""
    return _asked[0] if _asked else None


@contextmanager
def watched() -> Iterator[None]:
    """While the body runs, signals are noted instead of killing; only a main thread can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and _asked:
            raise KeyboardInterrupt
        _asked.append(number)

    before = {number: signal.signal(number, note) for number in NOTED}
    _asked.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()
