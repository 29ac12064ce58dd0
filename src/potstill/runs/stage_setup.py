"""From a stage of a recipe to a `Training`: its examples, its method, and how the student is scored after every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.making import DataMaker, EpochDataMaker, MakeContext, TeacherDataMaker
from potstill.errors import InputError
from potstill.inference.answers import model_answers
from potstill.measuring.quality import labelled
from potstill.models.student import Student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.build import StudentModels
from potstill.runs.compatibility import check_method, check_tokens, check_widths
from potstill.runs.data_set import DataSet, selection_metric, teacher_predictions
from potstill.signals import Wants
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.system.randomness import mix
from potstill.training.setup import Training
from potstill.training.target_scale import target_scale_of

MakeWithTeacher = Callable[[TeacherDataMaker, Examples, MakeContext], Examples]
"""Runs a data maker that asks the teacher, as `plan` does."""


@dataclass(frozen=True)
class Run:
    """What every stage of a run shares. Each cell of a grid, and each baseline, is a run with its own recipe and folder."""

    recipe: Recipe
    data_sets: list[DataSet]
    folder: Path
    accelerator: Accelerator
    display: Display


def make_training(run: Run, number: int, student: StudentModels, make: MakeWithTeacher | None = None) -> Training:
    """Make the examples of a stage and check that the method can be used on them. The stage trains the student in place."""
    stage, data_sets, seed = run.recipe.stage[number], run.data_sets, run.recipe.seed
    name, method = stage.method["name"], short_forms.make_plugin("methods", stage.method)
    changes = tuple(maker.change for maker in data_makers(stage) if isinstance(maker, EpochDataMaker))
    pairs = list(zip(student.models, data_sets, strict=True))
    asks = [check_method(name, method, model, data, bool(changes)) for model, data in pairs]
    check_widths(data_sets, asks)
    if stage.stop_teaching is not None and all(wants == Wants() for wants in asks):
        raise InputError(
            f"stop_teaching: method '{name}' never asks a teacher; use 'soft_targets', or omit stop_teaching"
        )
    sources = []
    for (model, data), wants in zip(pairs, asks, strict=True):
        examples = stage_examples(stage, data, wants != Wants(), seed, run.display, make)
        source = data.tokenised(examples, student.tokenizer, "train")
        check_tokens(name, data, source, wants)
        scale = target_scale_of(data.task, model, data.train, data.dev)
        sources.append(replace(source, changes=changes, seed=(seed, number), target_scale=scale))
    metrics = [selection_metric(run.recipe, data) for data in data_sets]
    return Training(
        student.models,
        [data.teacher for data in data_sets],
        sources,
        method,
        stage,
        seed,
        number,
        RunFolder(run.folder).stage(number),
        run.accelerator,
        partial(epoch_scores, student, data_sets, metrics, scored_splits(data_sets, sources, student.tokenizer)),
        run.recipe.save_every,
        scores_to_pass(stage.stop_teaching, data_sets, metrics),
    )


def teacher_wants(training: Training) -> list[Wants]:
    """What the method asks of the teacher of each data set."""
    return [training.wants(number)[1] for number in range(len(training.models))]


def data_makers(stage: Stage) -> list[DataMaker]:
    return [short_forms.make_plugin("data", fields) for fields in stage.data]


def stage_examples(
    stage: Stage,
    data: DataSet,
    asks_teacher: bool,
    seed: int,
    display: Display | None = None,
    make: MakeWithTeacher | None = None,
) -> Examples:
    """Run the stage's data makers on train. A method that does not ask the teacher learns from labelled rows only."""
    examples, context = data.train, MakeContext(seed, data.task, display, data.loaded_teacher, data.length)
    for maker in data_makers(stage):
        if isinstance(maker, TeacherDataMaker):  # the ranks share the work of the teacher
            examples = make(maker, examples, context) if make else maker.make(examples, context)
        else:
            examples = ranks.first_before_others(maker.make)(examples, context)
    if not asks_teacher:
        every, examples = len(examples), examples.labelled_only
        if display and stage.data and len(examples) < every:
            display.say(f"{every - len(examples)} of {every} examples have no label and are left out")
    if stage.reads != 1:
        examples = repeated(examples, stage.reads)
    if not len(examples):
        instead = "give labelled rows, or a teacher and a method that asks it, such as 'soft_targets'"
        raise InputError(f"{data.train.source}: no row is left to learn from; {instead}")
    return examples


def repeated(examples: Examples, times: float) -> Examples:
    """Repeat the examples; for the fraction of `times`, add a seeded sample."""
    whole, rest = divmod(round(times * len(examples)), max(len(examples), 1))
    more = np.random.default_rng(mix("repeated")).permutation(len(examples))[:rest]
    return examples.take(np.concatenate([np.tile(np.arange(len(examples)), whole), np.sort(more)]))


def scored_splits(
    data_sets: list[DataSet], training: list[TokenisedSet], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[TokenisedSet]]:
    """Dev, which chooses the epoch, and a tenth of train, 200 to 1,000 rows, which shows over-fitting."""
    splits = {"dev": [data.for_scoring(data.dev.labelled_only, tokenizer) for data in data_sets]}
    learned = [source.examples.labelled_only for source in training]
    if all(map(len, learned)) and not any(data.task.decodes for data in data_sets):  # decoding takes too long
        samples = [examples.sample(max(200, min(1000, len(examples) // 10)), seed=0) for examples in learned]
        splits["train"] = [data.for_scoring(rows, tokenizer) for data, rows in zip(data_sets, samples, strict=True)]
    return splits


def epoch_scores(
    student: StudentModels, data_sets: list[DataSet], metrics: list[str], splits: dict[str, list[TokenisedSet]]
) -> dict[str, float]:
    """The mean selection metric over data sets by split, dev first; then every metric as "split.data set.metric"."""
    means: dict[str, float] = {}
    each: dict[str, float] = {}
    for split, sources in splits.items():
        scores = [model_scores(*pair) for pair in zip(student.students, sources, strict=True)]
        means[split] = float(np.mean([of[metric] for of, metric in zip(scores, metrics, strict=True)]))
        for data, of_data in zip(data_sets, scores, strict=True):
            each |= {f"{split}.{data.name}.{metric}": value for metric, value in of_data.items()}
    return {**means, **each}


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
