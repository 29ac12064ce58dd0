"""A seeded sample of the training rows, for trials, grids and learning curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potstill.data.batches import mix
from potstill.data.examples import Examples
from potstill.data.making import Context


@dataclass(frozen=True)
class Sample:
    """`rows` examples drawn without repetition; all where there are fewer. The draw hangs on `draw`, not on the run's seed."""

    rows: int = 1000
    draw: int = 0

    def make(self, examples: Examples, context: Context) -> Examples:
        random = np.random.default_rng(mix(self.draw, "sample"))
        return examples.take(np.sort(random.permutation(len(examples))[: self.rows]))
