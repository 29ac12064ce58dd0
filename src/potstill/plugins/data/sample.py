"""A seeded sample of the training rows, for trials, grids and learning curves."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.data.examples import Examples
from potstill.data.making import Context


@dataclass(frozen=True)
class Sample:
    """`rows` examples drawn without repetition; all where there are fewer. The draw hangs on `draw`, not on the run's seed."""

    rows: int = 1000
    draw: int = 0

    def make(self, examples: Examples, context: Context) -> Examples:
        return examples.sample(self.rows, self.draw)
