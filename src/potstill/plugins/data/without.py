"""The rows of some classes left out, so that a student meets them in its teacher's answers alone (arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from potstill.data.examples import Examples
from potstill.data.making import Context
from potstill.errors import InputError


@dataclass(frozen=True)
class Without:
    """`labels`: the classes that are left out. Rows without a label stay."""

    labels: list[str] = field(default_factory=list)

    def make(self, examples: Examples, context: Context) -> Examples:
        task = context.task
        if task is None or task.outcome != "class" or task.target_width != 1 or not task.names_outputs:
            raise InputError(
                "data.without leaves out rows by their class, but a row has no single class here; leave it out"
            )
        known = task.knowing(self.labels)
        gone = [known.number(label, "data.without") for label in self.labels]
        there = np.isin(examples.targets[examples.index], gone) & examples.labelled[examples.index]
        return examples.take(np.flatnonzero(~there))
