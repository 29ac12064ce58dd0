"""How good a student in training is on dev: its scores, its distance to the teacher, and the loss that judges rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.errors import InputError
from potstill.inference.answers import Ask, answers, logits_of, model_answers, predicted
from potstill.measuring.calibration import calibrated_loss, divergences, mean_loss
from potstill.measuring.quality import labelled
from potstill.models.builder import Student
from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet, selection_metric, teacher_predictions
from potstill.signals import Batch, Wants
from potstill.tasks.task import Task

LOGITS = Wants(logits=True)
DISTANCE = "dev.distance"  # the name in epochs.csv; lower is better


@dataclass(frozen=True)
class DevScores:
    """Scores the students of a stage on dev, and on a sample of train."""

    recipe: Recipe
    data_sets: list[DataSet]
    students: list[Student]
    splits: dict[str, list[TokenisedSet[Task]]]
    precision: str  # in which they are trained, and predict
    # the method learns from the teachers' logits, so that the distance to them on dev says how far it is
    followed: bool
    temperature: float = 1.0  # of the method, at which student and teacher are compared

    def remember(self) -> None:
        """Ask the teachers for dev. Every rank must call it, before the first score."""
        if self.followed:
            for data, source in zip(self.data_sets, self.splits["dev"], strict=True):
                data.teacher.remember(source, LOGITS)

    def __call__(self) -> dict[str, float]:
        """The mean selection metric over data sets by split, dev first; then the distance to the teachers; then every metric as
        "split.data set.metric"."""
        means: dict[str, float] = {}
        each: dict[str, float] = {}
        far: list[Distance] = []
        for split, sources in self.splits.items():
            chosen = []
            for data, student, source in zip(self.data_sets, self.students, sources, strict=True):
                distance = Distance(data, self.followed and split == "dev", self.temperature)
                of_data = self._scores(student, source, distance)
                far += [distance] if distance.wanted else []
                chosen.append(of_data[selection_metric(self.recipe, data)])
                each |= {f"{split}.{data.name}.{metric}": value for metric, value in of_data.items()}
            means[split] = float(np.mean(chosen))
        distances = {DISTANCE: float(np.mean([distance.mean for distance in far]))} if far else {}
        return {**means, **distances, **each}

    @property
    def has_rows(self) -> bool:
        return all(len(source.examples) for source in self.splits["dev"])

    def loss(self) -> float:
        """The loss on dev that compares learning rates, lower is better: the distance to the teachers, or that of the labels.

        A student that is too sure of itself is compared at the temperature that suits it.
        """
        sources = self.splits["dev"]
        losses = []
        for data, student, source in zip(self.data_sets, self.students, sources, strict=True):
            if self.followed:
                distance = Distance(data, True, self.temperature)
                for _ in predicted(distance.watched(logits_of(student.model, self.precision)), source):
                    pass
                losses.append(distance.mean)
            else:
                parts = predicted(logits_of(student.model, self.precision), source)
                of_labels = mean_loss if source.task.vocabulary else calibrated_loss
                losses.append(of_labels(parts, source.task.outcome))
        return float(np.mean(losses))

    def _scores(self, student: Student, source: TokenisedSet[Task], distance: Distance) -> dict[str, float]:
        """All metrics. An undefined correlation, as of constant predictions, counts as 0, so that such weights are not chosen."""
        if distance.wanted:
            answered = answers(distance.watched(logits_of(student.model, self.precision)), source)
        else:
            answered = model_answers(student, source, precision=self.precision)
        scores = source.task.score(*labelled(source.task, source.examples, answered))
        return {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}


@dataclass
class Distance:
    """The mean divergence from a teacher, KL(teacher ‖ student) over predictions at a temperature, or the squared error of values."""

    data: DataSet
    wanted: bool
    temperature: float
    parts: list[np.ndarray] = field(default_factory=list)

    def watched(self, ask: Ask) -> Ask:
        """The same answers, each compared with the teacher's, which are in its memory."""

        def asked(batch: Batch) -> np.ndarray:
            logits = ask(batch)
            taught = self.data.teacher.signals(batch, LOGITS).logits.cpu().numpy()
            outcome = self.data.task.outcome
            heat = 1.0 if outcome == "value" else self.temperature
            self.parts.append(divergences(taught / heat, logits / heat, outcome))
            return logits

        return asked

    @property
    def mean(self) -> float:
        return float(np.concatenate(self.parts).mean()) if self.parts else 0.0


def dev_scores(
    recipe: Recipe,
    data_sets: list[DataSet],
    students: list[Student],
    training: list[TokenisedSet[Task]],
    precision: str,
    learns_logits: bool,
    temperature: float = 1.0,
) -> DevScores:
    # distances over vocabularies, and to a teacher that has no memory of what is drawn, take too long
    too_long = any(data.task.vocabulary or data.task.draws for data in data_sets)
    followed = learns_logits and not too_long and all(data.predicting_teacher for data in data_sets)
    splits = scored_splits(data_sets, training, students[0].tokenizer, followed)
    return DevScores(recipe, data_sets, students, splits, precision, followed, temperature)


def scored_splits(
    data_sets: list[DataSet],
    training: list[TokenisedSet[Task]],
    tokenizer: PreTrainedTokenizerBase,
    followed: bool = False,
) -> dict[str, list[TokenisedSet[Task]]]:
    """Dev, which chooses the epoch, and a tenth of train, 200 to 1,000 rows, which shows over-fitting.

    `followed`: dev is tokenised for the teachers too.
    """
    dev = [(data, data.dev.labelled_only) for data in data_sets]
    splits = {
        "dev": [
            data.tokenised(rows, tokenizer, "dev") if followed else data.for_scoring(rows, tokenizer)
            for data, rows in dev
        ]
    }
    learned = [source.examples.labelled_only for source in training]
    if all(map(len, learned)) and not any(data.task.decodes for data in data_sets):  # decoding takes too long
        samples = [examples.sample(max(200, min(1000, len(examples) // 10)), seed=0) for examples in learned]
        splits["train"] = [data.for_scoring(rows, tokenizer) for data, rows in zip(data_sets, samples, strict=True)]
    return splits


def scores_to_pass(margin: float | None, data_sets: list[DataSet], metrics: list[str]) -> tuple[tuple[str, float], ...]:
    """For `stop_teaching`: the name of each data set's score on dev, and the value above which its teacher is ignored."""
    if margin is None:
        return ()
    bounds = []
    for data, metric in zip(data_sets, metrics, strict=True):
        if data.predicting_teacher is None:
            raise InputError(f"stop_teaching: {data.name} has no teacher to pass; give one, or omit stop_teaching")
        rows = data.dev.labelled_only
        source = data.tokenised(rows, data.predicting_teacher.tokenizer, "dev")
        ask = (
            partial(model_answers, data.predicting_teacher)
            if data.task.vocabulary
            else partial(teacher_predictions, data)
        )
        reached = data.task.score(*labelled(data.task, rows, ask(source)))[metric]
        bounds.append((f"dev.{data.name}.{metric}", reached + margin))
    return tuple(bounds)
