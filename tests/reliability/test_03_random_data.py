from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from world import World, make_world, stopped_and_resumed

from potstill.batches import Source, mix
from potstill.data import Context
from potstill.examples import Examples
from potstill.methods.soft_targets import SoftTargets
from potstill.signals import Batch, Signals, Term, Wants

STOPS = (2, 5, 7, 10)


@dataclass(frozen=True)
class Redrawn:
    """A data maker: as many rows as there are, drawn with repetition."""

    def make(self, examples: Examples, context: Context) -> Examples:
        random = np.random.default_rng(mix(context.seed, "redrawn"))
        return examples.take(random.integers(0, len(examples), len(examples)))


@dataclass(frozen=True)
class Masked:
    """A method that covers other answers in each micro-batch, and shakes the teacher's."""

    plain: SoftTargets

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return self.plain.wants(student_layers, teacher_layers)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        covered = torch.rand(len(student.logits), 1) < 0.3
        shaken = replace(teacher, logits=teacher.logits + 0.1 * torch.randn_like(teacher.logits))
        return self.plain.losses(replace(student, logits=student.logits.masked_fill(covered, 0.0)), shaken, batch)


def test_03_random_rows_and_dynamic_masks_are_the_same_after_a_resume(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    def drawn(world: World) -> Source:
        return world.source(Redrawn().make(world.examples, Context(0)))

    difference, changed = stopped_and_resumed(make_world, tmp_path, Masked(SoftTargets()), STOPS, drawn)
    assert difference == 0 and changed
    figure(3, f"difference {difference:g}, {len(STOPS)} of {len(STOPS)}")
