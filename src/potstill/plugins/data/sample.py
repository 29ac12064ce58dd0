"""A seeded sample of the training rows, for trials, grids and learning curves."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import DataMaker, Examples, MakeContext


@dataclass(frozen=True)
class Sample(DataMaker):
    """rows: how many examples are drawn, without repetition; all if there are fewer.
    draw: decides the draw; the run's seed does not.
    """

    rows: int = 1000
    draw: int = 0

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        return examples.sample(self.rows, self.draw)
