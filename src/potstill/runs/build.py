"""The student before it is trained: weights to begin from, reshaped by builders, with a head for each data set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import set_dropout
from potstill.models.student import Context, Student, is_spread, load_student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.data_set import DataSet
from potstill.system.randomness import mix, seeded
from potstill.tasks.task import Task
from potstill.training.target_scale import output_layer, target_scale_of, unscale_outputs

if TYPE_CHECKING:
    from potstill.runs.prepare import DataSet


def build(recipe: Recipe, data: list[DataSet]) -> tuple[list[PreTrainedModel], PreTrainedTokenizerBase]:
    """The student before its first stage: one model per data set, all with the first one's encoder."""
    first = data[0]
    builders = recipe.student
    # after a teacher it is built, not begun: it may take over the teacher's tokenizer
    alone = recipe.start is None and first.loaded_teacher is None
    new = begin_anew(builders, first.task, partial(all_texts, data), recipe.seed) if alone else None
    if new is not None:
        begin, builders = new, builders[1:]
    elif recipe.start is not None or first.loaded_teacher is None:
        begin = begin_from(str(recipe.start), first.task, recipe.seed)
    else:
        whole = first.loaded_teacher
        if is_spread(whole.model):  # the student is made of weights that lie in one place
            whole = load_student(str(recipe.data[0].teacher or recipe.teacher))
        begin = Student(copy.deepcopy(whole.model).requires_grad_(True), whole.tokenizer)
    name_classes(begin.model, first)
    begun_new = new is not None or begin.new_head
    student = shape(begin, builders, recipe.seed, begin, data)
    if begun_new or not same_head(begin.model, student.model):
        begin_at_the_mean(student.model, first)
    student.model.eval()
    if recipe.dropout is not None:
        set_dropout(student.model, recipe.dropout)
    heads = [student.model, *(further_head(student.model, other, recipe.seed) for other in data[1:])]
    note_lengths(heads, data)
    return heads, student.tokenizer


def shape(current: Student, builders: list[dict[str, Any]], seed: int, start: Student, data: list[DataSet]) -> Student:
    context = Context(start=start, seed=seed, texts=partial(all_texts, data), pairs=data[0].has_pairs)
    for fields in builders:
        builder = short_forms.made("students", fields)
        if isinstance(current.tokenizer, PixelReader) and "ImageClassification" not in getattr(builder, "serves", ()):
            raise InputError(
                f"student.{fields['build']} is for networks that read texts; for images write student = 'mlp'"
            )
        current = builder.build(current, context)
    return current


def all_texts(data: list[DataSet]) -> Iterator[str]:
    for one in data:
        yield from one.texts()


def reshape(
    stage: Stage, recipe: Recipe, models: list[PreTrainedModel], tokenizer: PreTrainedTokenizerBase, data: list[DataSet]
) -> tuple[list[PreTrainedModel], PreTrainedTokenizerBase]:
    if not stage.reshape:
        return models, tokenizer
    if len(models) > 1:
        raise InputError("a stage of a multi-task recipe cannot reshape the student; give its shape as student = …")
    now = Student(models[0], tokenizer)
    student = shape(now, stage.reshape, recipe.seed, now, data)
    if not same_head(now.model, student.model):
        begin_at_the_mean(student.model, data[0])
    note_lengths([student.model], data)
    return [student.model], student.tokenizer


def further_head(first: PreTrainedModel, data: DataSet, seed: int) -> PreTrainedModel:
    """A stock model for another data set on the first one's encoder; its head is new. What writes texts has one for all."""
    if data.task.generates:
        return first
    config = copy.deepcopy(first.config)
    if data.task.names_outputs:
        config.num_labels = data.task.classes
    if hasattr(config, "pairs"):  # of students over word vectors, whose head reads one text or two
        config.pairs = data.has_pairs
    with seeded(mix(seed, data.name, "head")):
        model: PreTrainedModel = type(first)(config)
    setattr(model, model.base_model_prefix, first.base_model)
    name_classes(model, data)
    begin_at_the_mean(model, data)
    return model.eval()


def same_head(before: PreTrainedModel, after: PreTrainedModel) -> bool:
    """Whether the last layer was taken over."""
    ours, theirs = output_layer(before), output_layer(after)
    return ours is not None and theirs is not None and torch.equal(ours.weight, theirs.weight)


def begin_at_the_mean(model: PreTrainedModel, data: DataSet) -> None:
    """A new head's small random answers, around the mean of the numbers to be predicted and as wide as these are."""
    if (scale := target_scale_of(data.task, model, data.train, data.dev)) is not None:
        unscale_outputs(model, scale)


def note_lengths(models: list[PreTrainedModel], data: list[DataSet]) -> None:
    """How many tokens of a text are read in training, so that `predict` reads no more, over positions that never learned."""
    for model, one in zip(models, data, strict=True):
        if one.task.form not in ("pixels", "translation", "writing"):
            model.config.potstill_length = one.length


def name_classes(model: PreTrainedModel, data: DataSet) -> None:
    """The task's names in the config, so that every reader of the student's folder knows what its outputs mean."""
    if data.task.names_outputs:
        model.config.id2label = dict(enumerate(data.task.labels))
        model.config.label2id = {label: number for number, label in enumerate(data.task.labels)}
    model.config.problem_type = data.task.problem


def begin_anew(
    builders: list[dict[str, Any]], task: Task, texts: Callable[[], Iterator[str]], seed: int = 0
) -> Student | None:
    """The first builder's student for a task, where it needs no weights to begin from; None where it does."""
    first = short_forms.made("students", builders[0]) if builders else None
    begin: Callable[[Task, int, Callable[[], Iterator[str]]], Student] | None = getattr(first, "begin", None)
    return begin(task, seed, texts) if begin else None


def begin_from(folder: str | Path, task: Task, seed: int = 0) -> Student:
    """A model to be trained for a task: its encoder with the task's head, a new one where it has none that fits."""
    return load_student(folder, task.labels if task.names_outputs else (), task.problem, seed, task.head)
