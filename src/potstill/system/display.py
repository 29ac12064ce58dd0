"""Messages and progress bars on standard error, so that standard output stays free for results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tqdm.auto import tqdm

from potstill.system.terminal import duration, is_terminal, say, visible

# Without a terminal, a line of progress is written at the earliest after SOONEST seconds and this part of the work …
SOONEST, PART = 10.0, 0.05
LATEST = 300.0  # … and at the latest after this many seconds


class Bar:
    """Progress towards a total: a tqdm bar on a terminal, otherwise a line now and then."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0, quiet: bool = False) -> None:
        self.label, self.total, self.unit, self.quiet = visible(label), total, unit, quiet
        self.done = self.first = self.last = done
        self.began = self.reported = time.monotonic()
        self.note: Mapping[str, str] = {}
        self.bar: Any = None
        if is_terminal() and not quiet:  # the delay keeps work that is finished at once from flickering
            self.bar = tqdm(
                total=total, desc=self.label, unit=unit, initial=done, leave=False, delay=0.5, file=sys.stderr
            )

    def advance(self, count: int, note: Mapping[str, str] | None = None) -> None:
        self.done += count
        self.note = note or {}
        if self.bar is not None:
            self.bar.set_postfix(self.note, refresh=False)
            self.bar.update(count)
        elif not self.quiet and self.is_due(time.monotonic()):
            self.reported, self.last = time.monotonic(), self.done
            say(self.line())

    def is_due(self, now: float) -> bool:
        enough = self.done - self.last >= PART * self.total
        return now - self.reported >= (SOONEST if enough else LATEST)

    def line(self) -> str:
        """label: 1200 of 5000 rows, 24 %, about 40 s left; soft 0.312"""
        passed = max(self.reported - self.began, 1e-9)
        left = duration(max(self.total - self.done, 0) * passed / max(self.done - self.first, 1))
        share = f", {100 * self.done // self.total} %" if self.total else ""
        note = "; " + ", ".join(f"{name} {value}" for name, value in self.note.items()) if self.note else ""
        label = f"{self.label}: " if self.label else ""
        return f"{label}{self.done} of {self.total} {self.unit}s{share}, about {left} left{note}"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Display:
    """Says messages and shows bars, or nothing at all if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            with tqdm.external_write_mode(file=sys.stderr):  # clears open bars while the line is written
                say(text)

    def bar(self, label: str, total: int, unit: str = "row", done: int = 0) -> closing[Bar]:
        return closing(Bar(label, total, unit, done, self.quiet))
