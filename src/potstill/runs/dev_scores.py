"""Score the student after every epoch: on dev, which chooses the epoch, and on a part of train, which shows over-fitting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.errors import InputError
from potstill.inference.answers import model_answers
from potstill.measuring.quality import labelled
from potstill.models.student import Student
from potstill.runs.build import StudentModels
from potstill.runs.data_set import DataSet, teacher_predictions


@dataclass(frozen=True)
class EpochScorer:
    student: StudentModels
    data_sets: list[DataSet]
    metrics: list[str]  # the selection metric of each data set
    splits: dict[str, list[TokenisedSet]]  # split -> one source per data set

    def __call__(self) -> dict[str, float]:
        """The mean selection metric over data sets by split, dev first; then every metric as "split.data set.metric"."""
        means: dict[str, float] = {}
        each: dict[str, float] = {}
        for split, sources in self.splits.items():
            scores = [model_scores(*pair) for pair in zip(self.student.students, sources, strict=True)]
            means[split] = float(np.mean([of[metric] for of, metric in zip(scores, self.metrics, strict=True)]))
            for data, of_data in zip(self.data_sets, scores, strict=True):
                each |= {f"{split}.{data.name}.{metric}": value for metric, value in of_data.items()}
        return {**means, **each}


def scored_splits(
    data_sets: list[DataSet], training: list[TokenisedSet], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[TokenisedSet]]:
    """Dev, and of what is trained on a tenth, 200 to 1,000 rows: enough for a curve, and cheap beside the epoch."""
    splits = {"dev": [data.for_scoring(data.dev.labelled_only, tokenizer) for data in data_sets]}
    learned = [source.examples.labelled_only for source in training]
    if all(map(len, learned)) and not any(data.task.decodes for data in data_sets):  # decoding takes too long
        samples = [examples.sample(max(200, min(1000, len(examples) // 10)), seed=0) for examples in learned]
        splits["train"] = [data.for_scoring(rows, tokenizer) for data, rows in zip(data_sets, samples, strict=True)]
    return splits


def model_scores(student: Student, source: TokenisedSet) -> dict[str, float]:
    """All metrics. An undefined correlation, as of constant predictions, counts as 0, so that such weights are not chosen."""
    scores = source.task.score(*labelled(source.task, source.examples, model_answers(student, source)))
    return {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}


def scores_to_pass(margin: float | None, data_sets: list[DataSet], metrics: list[str]) -> tuple[tuple[str, float], ...]:
    """For `stop_teaching`: the name of each data set's score on dev, and the value above which its teacher is ignored."""
    if margin is None:
        return ()
    bounds = []
    for data, metric in zip(data_sets, metrics, strict=True):
        if data.loaded_teacher is None:
            raise InputError(f"stop_teaching: {data.name} has no teacher to pass; give one, or omit stop_teaching")
        rows = data.dev.labelled_only
        source = data.tokenised(rows, data.loaded_teacher.tokenizer, "dev")
        ask = partial(model_answers, data.loaded_teacher) if data.task.generates else partial(teacher_predictions, data)
        reached = data.task.score(*labelled(data.task, rows, ask(source)))[metric]
        bounds.append((f"dev.{data.name}.{metric}", reached + margin))
    return tuple(bounds)
