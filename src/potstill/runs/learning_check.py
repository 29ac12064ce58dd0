"""Does the teacher know the task, and did the student learn it? Both are compared with chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potstill.data.examples import Examples
from potstill.errors import InputError
from potstill.inference.answers import answers, network
from potstill.measuring.quality import labelled
from potstill.models.inference import torch_forward
from potstill.recipe.schema import Stage
from potstill.runs.data_set import DataSet, teacher_predictions
from potstill.system.randomness import mix
from potstill.tasks.chance import judge, near_chance

CHECKED_ROWS = 1000
CHECKED_TEXTS = 100  # of generative models, which predict every token of a text
RISING = 0.01  # of the dev score in the last epoch: training for longer would probably have gained more


def check_teacher(data: DataSet, say: Callable[[str], None]) -> None:
    """Compare the teacher's predictions with the labels of some dev rows, and of train rows where dev has too few."""
    examples = rows_to_check(data)
    if not len(examples):
        return
    results = [_labels_and_predictions(data, examples, "dev")]
    verdict = judge(data.task, results)
    if verdict.kind == "unsure" and len(more := _sample(data, data.train.labelled_only, len(examples))):
        results.append(_labels_and_predictions(data, more, "train"))
        verdict = judge(data.task, results)
    if (reason := near_chance(verdict)) is not None:
        raise InputError(f"{examples.source}: {reason}")
    if verdict.kind == "unsure":
        say(f"{examples.source}: too few rows to tell whether the teacher knows the task ({verdict}); it is used")


def rows_to_check(data: DataSet) -> Examples:
    """Labelled rows of dev, or of train where dev has none. A large file is sampled, since it may be sorted."""
    return _sample(data, data.dev.labelled_only if len(data.dev.labelled_only) else data.train.labelled_only, 0)


def _sample(data: DataSet, examples: Examples, already_checked: int) -> Examples:
    most = CHECKED_TEXTS if data.task.generates else CHECKED_ROWS
    rows = np.random.default_rng(mix("chance")).permutation(len(examples))[: max(0, most - already_checked)]
    return examples.take(np.sort(rows))


def _labels_and_predictions(data: DataSet, examples: Examples, split: str) -> tuple[np.ndarray, np.ndarray]:
    assert data.loaded_teacher is not None
    source = data.tokenised(examples, data.loaded_teacher.tokenizer, split)
    if data.task.generates:  # its next-token predictions are enough; decoding would take longer
        return data.task.golds(examples), answers(network(torch_forward(data.loaded_teacher.model)), source)
    return data.task.golds(examples), teacher_predictions(data, source)


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
