"""Build the student that a run trains: weights to start from, reshaped by builders, with a head for each data set."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import is_spread, set_dropout
from potstill.models.builder import BuildContext, Builder, Texts
from potstill.models.student import Student, load_student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.data_set import DataSet, texts_of
from potstill.system.randomness import mix, seeded
from potstill.tasks.task import Task
from potstill.training.target_scale import output_layer, target_scale_of, unscale_outputs

Builders = list[dict[str, Any]]


@dataclass(frozen=True)
class StudentModels:
    """A student for several data sets: one model for each, all on the encoder of the first."""

    models: list[PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase

    @property
    def students(self) -> list[Student]:
        return [Student(model, self.tokenizer) for model in self.models]


def build(recipe: Recipe, data_sets: list[DataSet]) -> StudentModels:
    """Return the student before its first stage."""
    first, builders = data_sets[0], recipe.student
    # a builder that can begin a network shapes the teacher's instead where there is one, to take over its tokenizer
    alone = recipe.start is None and first.loaded_teacher is None
    new = begin_anew(builders, first.task, train_texts(data_sets), recipe.seed) if alone else None
    if new is not None:
        start, builders = new, builders[1:]
    elif recipe.start is not None or first.loaded_teacher is None:
        start = begin_from(str(recipe.start), first.task, recipe.seed)
    else:
        teacher = first.loaded_teacher
        if is_spread(teacher.model):  # the student needs weights that are on one device
            teacher = load_student(str(recipe.data[0].teacher or recipe.teacher))
        start = Student(copy.deepcopy(teacher.model).requires_grad_(True), teacher.tokenizer)
    describe_task(start.model, first)
    student = run_builders(builders, start, recipe.seed, data_sets, new is not None or start.new_head)
    student.model.eval()
    if recipe.dropout is not None:
        set_dropout(student.model, recipe.dropout)
    models = [student.model, *(add_head(student.model, data, recipe.seed) for data in data_sets[1:])]
    return StudentModels(models, student.tokenizer)


def reshape(stage: Stage, recipe: Recipe, student: StudentModels, data_sets: list[DataSet]) -> StudentModels:
    """Apply the builders that a stage lists under `reshape`."""
    if not stage.reshape:
        return student
    if len(student.models) > 1:
        raise InputError("a stage of a multi-task recipe cannot reshape the student; give its shape as student = …")
    reshaped = run_builders(stage.reshape, student.students[0], recipe.seed, data_sets)
    return StudentModels([reshaped.model], reshaped.tokenizer)


def begin_anew(builders: Builders, task: Task, texts: Texts, seed: int = 0) -> Student | None:
    """Return the new network of the first builder; None if that builder needs weights to start from."""
    if not builders:
        return None
    first: Builder = short_forms.make_plugin("students", builders[0])
    return first.begin(task, seed, texts)


def begin_from(folder: str | Path, task: Task, seed: int = 0) -> Student:
    """Load a model to train on a task: its encoder with the task's head, a new one if its own does not fit."""
    return load_student(folder, task.labels if task.names_outputs else (), task.problem, seed, task.head)


def run_builders(
    builders: Builders, start: Student, seed: int, data_sets: list[DataSet], new_head: bool = False
) -> Student:
    """Reshape a model for the first data set. `new_head`: its head has random weights already."""
    student = start
    context = BuildContext(start=start, seed=seed, texts=train_texts(data_sets), pairs=data_sets[0].has_pairs)
    for fields in builders:
        builder: Builder = short_forms.make_plugin("students", fields)
        if isinstance(student.tokenizer, PixelReader) and "ImageClassification" not in builder.task_heads:
            raise InputError(f"student.{fields['build']} builds networks for texts; for images write student = 'mlp'")
        student = builder.build(student, context)
    before, after = output_layer(start.model), output_layer(student.model)
    if new_head or before is None or after is None or not torch.equal(before.weight, after.weight):
        scale_new_head(student.model, data_sets[0])
    describe_task(student.model, data_sets[0])
    return student


def train_texts(data_sets: list[DataSet]) -> Texts:
    """The texts of train alone: words of dev in the vocabulary would make dev easier than test."""
    return partial(texts_of, [data.train for data in data_sets])


def add_head(first: PreTrainedModel, data: DataSet, seed: int) -> PreTrainedModel:
    """Return a model for another data set: the encoder of the first, with a new head. Heads over the vocabulary are shared."""
    if data.task.vocabulary:
        return first
    config = copy.deepcopy(first.config)
    if data.task.names_outputs:
        config.num_labels = data.task.classes
    if hasattr(config, "pairs"):  # heads over word vectors read one text or two
        config.pairs = data.has_pairs
    with seeded(mix(seed, data.name, "head")):
        model: PreTrainedModel = type(first)(config)
    setattr(model, model.base_model_prefix, first.base_model)
    describe_task(model, data)
    scale_new_head(model, data)
    return model.eval()


def scale_new_head(model: PreTrainedModel, data: DataSet) -> None:
    """For regression: let the small random outputs of a new head have the mean and the deviation of the labels."""
    if (scale := target_scale_of(data.task, model, data.train, data.dev)) is not None:
        unscale_outputs(model, scale)


def describe_task(model: PreTrainedModel, data: DataSet) -> None:
    """Write classes and length into the config, for any program that reads the student's folder.

    `predict` must not read tokens at positions that were never trained.
    """
    if data.task.names_outputs:
        model.config.id2label = dict(enumerate(data.task.labels))
        model.config.label2id = {label: number for number, label in enumerate(data.task.labels)}
    model.config.problem_type = data.task.problem
    if data.task.limits_length:
        model.config.potstill_length = data.length
