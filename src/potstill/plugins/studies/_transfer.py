"""The transfer of masks between tasks, from a table of scores (Chen et al., 2020, arXiv:2007.12223, figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Transfer:
    """How masks do on tasks beside the tasks' own masks. A cell is dark if the difference is not below zero."""

    sources: Sequence[str]
    targets: Sequence[str]
    differences: np.ndarray  # (sources, targets) TRANSFER(S, T) − TRANSFER(T, T)
    dark: np.ndarray  # (sources, targets) bool
    best: list[str]  # for each target the source with the highest score, the first of equal ones

    @classmethod
    def of(cls, sources: Sequence[str], targets: Sequence[str], scores: np.ndarray) -> Transfer:
        """`scores`: (sources, targets) TRANSFER(S, T), means over runs."""
        own = np.array([scores[list(sources).index(target), place] for place, target in enumerate(targets)])
        differences = scores - own
        return cls(sources, targets, differences, differences >= 0, [sources[n] for n in scores.argmax(0)])

    @property
    def dark_cells(self) -> list[int]:
        """The dark cells of each row but the one on the diagonal, which is dark always."""
        counts = self.dark.sum(1) - [source in self.targets for source in self.sources]
        return [int(count) for count in counts]
