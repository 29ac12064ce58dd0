"""Whether a student has learned at all: a table of figures does not say that they are those of a coin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potstill.data.examples import Examples
from potstill.measuring.quality import labelled
from potstill.recipe.schema import Stage
from potstill.tasks.chance import judge, near_chance
from potstill.tasks.task import Task

RISING = 0.01  # of the score on dev in the last epoch: more would probably have followed


def left_chance(task: Task, dev: Examples, said: np.ndarray) -> bool:
    """Whether the answers on dev are better than those of somebody who has not read the rows."""
    targets, answers = labelled(task, dev, said)
    return not len(targets) or near_chance(judge(task, [(targets, answers)])) is None


def what_to_try(name: str, data: str, stage: Stage) -> str:
    """For a student that did not leave chance."""
    rate, epochs = stage.optimizer.full_rate, stage.passes
    return (
        f"{name} did not learn {data}: on dev it is no better than chance. Its rate was {rate:g} for {epochs:g} epochs; "
        f"try --rate {4 * rate:g}, then --epochs {2 * epochs:g}, or give more rows"
    )


def still_rising(scores: Sequence[float], rate: float, epochs: float) -> str | None:
    """For a training that ended while dev went up; None where it did not."""
    if len(scores) < 2 or scores[-1] - max(scores[:-1]) < RISING:
        return None
    before, after = 100 * max(scores[:-1]), 100 * scores[-1]
    return (
        f"dev was still rising in the last epoch, from {before:.1f} to {after:.1f}: the student has not learned all it could; "
        f"try --epochs {2 * epochs:g}, or --rate {2 * rate:g}"
    )
