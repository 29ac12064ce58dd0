"""Ways to make examples. One file is one data maker; its name is the word that recipes use.

A data maker is a frozen dataclass with `make(examples, context)`, which returns examples; a stage lists the makers it
wants as `data = [{ make = "sample", rows = 640 }]`. One that changes examples anew in every epoch has
`change(batch, draw)` as well, which returns the changed batch; `draw(n)` gives (batch, n) numbers from 0 to below 1 that
follow from seed, epoch and example alone, so that a resumed run and every rank draw the same. The teacher is then asked
live, on what the student sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potstill.models.student import Student
    from potstill.system.display import Display
    from potstill.tasks.task import Task


@dataclass(frozen=True)
class Context:
    """What a data maker may look at beside the examples."""

    seed: int
    task: Task | None = None
    show: Display | None = None  # None: nothing is shown
    teacher: Student | None = None  # None: there is none, or its answers lie in a file
    longest: int = 256  # tokens of a text
    together: bool = False  # all ranks are here and share the work; else each works as if alone

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar for the body, which tells it how many more rows are done."""
        if self.show is None:
            yield lambda count: None
        else:
            with self.show.bar(label, total) as bar:
                yield bar.advance
