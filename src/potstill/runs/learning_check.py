"""Did the student learn? Advice for one that is no better than chance, or that was still improving when training ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potstill.measuring.quality import labelled
from potstill.recipe.schema import Stage
from potstill.runs.data_set import DataSet
from potstill.tasks.chance import judge, near_chance

RISING = 0.01  # of the dev score in the last epoch: training for longer would probably have gained more


def has_learned(stage: Stage, data: DataSet, name: str, predictions: np.ndarray, say: Callable[[str], None]) -> bool:
    """True if a student's predictions on dev are better than chance; otherwise say what to try."""
    targets, predictions = labelled(data.task, data.dev, predictions)
    learned = not len(targets) or near_chance(judge(data.task, [(targets, predictions)])) is None
    if not learned:
        say(what_to_try(name, data.name, stage))
    return learned


def what_to_try(name: str, data: str, stage: Stage) -> str:
    rate, epochs = stage.optimizer.full_rate, stage.passes
    return (
        f"{name} did not learn {data}: on dev it is no better than chance. Its rate was {rate:g} for {epochs:g} epochs; "
        f"try --rate {4 * rate:g}, then --epochs {2 * epochs:g}, or give more rows"
    )


def still_rising(scores: Sequence[float], rate: float, epochs: float) -> str | None:
    """Advice for a training whose last epoch was still better on dev; None otherwise."""
    if len(scores) < 2 or scores[-1] - max(scores[:-1]) < RISING:
        return None
    before, after = 100 * max(scores[:-1]), 100 * scores[-1]
    return (
        f"dev was still rising in the last epoch, from {before:.1f} to {after:.1f}: the student could learn more; "
        f"try --epochs {2 * epochs:g}, or --rate {2 * rate:g}"
    )
