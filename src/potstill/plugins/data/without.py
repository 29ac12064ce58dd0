"""Leave out the rows of some classes, so that a student knows them from its teacher's answers alone (arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from potstill.api import DataMaker, Examples, InputError, MakeContext


@dataclass(frozen=True)
class Without(DataMaker):
    """labels: the classes to leave out. Rows without a label stay."""

    labels: list[str] = field(default_factory=list)

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        task = context.task
        if task is None or task.outcome != "class" or task.target_width != 1 or not task.names_outputs:
            raise InputError(
                "data.without leaves out rows by their class, but these rows have no single class; omit it"
            )
        task = task.with_spellings_of(self.labels)
        classes = [task.number(label, "data.without") for label in self.labels]
        dropped = np.isin(examples.targets[examples.index], classes) & examples.labelled[examples.index]
        return examples.take(np.flatnonzero(~dropped))
