"""SIGTERM and SIGINT end a run at the end of a step, after a checkpoint; a second SIGINT ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


class Interrupted(Exception):
    """Raised after the work was saved; `code` is the exit code of the process: 130 or 143."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (self.code - 128,)  # to be sent to other ranks


def received() -> int | None:
    """The signal that asked this process to stop, or None."""
    return _received[0] if _received else None


def stop_if_asked() -> None:
    """Raise Interrupted if a signal was received. Call it where all finished work is saved."""
    if number := received():
        raise Interrupted(number)


@contextmanager
def deferred() -> Iterator[None]:
    """Within it, signals are noted instead of ending the process. Outside of the main thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and _received:
            raise KeyboardInterrupt
        _received.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    _received.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()
