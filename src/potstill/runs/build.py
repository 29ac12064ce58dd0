"""Build the student that a run trains: weights to start from, reshaped by builders, with a head for each task."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import in_head, is_spread, set_dropout
from potstill.models.architectures.reshaped import is_reshaped
from potstill.models.builder import BuildContext, Builder, Student, Texts
from potstill.models.heads import auto_class, head_of_class
from potstill.models.student import load_student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Round
from potstill.runs.data_set import DataSet, texts_of
from potstill.system.randomness import mix, seeded
from potstill.tasks.task import Task
from potstill.training.target_scale import output_layer, target_scale_of, unscale_outputs

Builders = list[dict[str, Any]]


@dataclass(frozen=True)
class StudentModels:
    """A student in a run: one encoder, and for every task that it has met a model with a head on that encoder."""

    heads: dict[str, PreTrainedModel]
    trained: tuple[str, ...]  # the heads of the present stage, one for each of its data sets
    tokenizer: PreTrainedTokenizerBase

    @property
    def models(self) -> list[PreTrainedModel]:
        """The models of the present stage. Tasks over the vocabulary share one."""
        return [self.heads[name] for name in self.trained]

    @property
    def students(self) -> list[Student]:
        return [Student(model, self.tokenizer) for model in self.models]

    def clone(self) -> StudentModels:
        return replace(self, heads=copy.deepcopy(self.heads))  # in one call: the copies share their encoder too


class Start(NamedTuple):
    """The model that a student starts from."""

    student: Student
    is_new: bool  # the first builder made it


def begin(recipe: Recipe, task: Task, teacher: Student | None, texts: Texts) -> Start:
    """The recipe's `start`, a new network of the first builder, or a copy of the teacher."""
    if (new := begin_anew(recipe, task, teacher, texts)) is not None:
        return Start(new, True)
    if recipe.start is None and teacher is not None:
        if is_spread(teacher.model):  # the student needs weights that are on one device
            teacher = load_student(str(recipe.data_of(recipe.stage[0])[0].teacher))
        return Start(Student(copy.deepcopy(teacher.model).requires_grad_(True), teacher.tokenizer), False)
    if not (recipe.start or recipe.teacher):
        own = task.words.new_student
        instead = f", or build a new network: --student {own}" if own else ""
        weights = f"a teacher's folder with --teacher, or other weights as start = 'DIR'{instead}"
        raise InputError(f"the student has no weights to start from; give {weights}")
    return Start(begin_from(str(recipe.start or recipe.teacher), task, recipe.seed), False)


def begin_anew(recipe: Recipe, task: Task, teacher: Student | None, texts: Texts) -> Student | None:
    """Return the new network of the first builder; None if that builder needs weights to start from.

    A builder that can begin a network shapes the teacher's instead where there is one, to take over its tokenizer.
    """
    if recipe.start is not None or recipe.teacher or teacher is not None or not recipe.student:
        return None
    first: Builder = short_forms.make_plugin("students", recipe.student[0])
    return first.begin(task, recipe.seed, texts)


def begin_from(folder: str | Path, task: Task, seed: int = 0) -> Student:
    """Load a model to train on a task: its encoder with the task's head, a new one if its own does not fit."""
    return load_student(folder, task.labels if task.names_outputs else (), task.problem, seed, task.head)


def build(recipe: Recipe, data_sets: list[DataSet], start: Start | None = None) -> StudentModels:
    """Return the student before its first stage. `start`: if it was loaded before; it is changed."""
    first = data_sets[0]
    student, is_new = start or begin(recipe, first.task, first.loaded_teacher, train_texts(data_sets))
    describe_task(student.model, first)
    context = BuildContext(student, recipe.seed, train_texts(data_sets), first.has_pairs, first.loaded_teacher)
    builders = recipe.student[1:] if is_new else recipe.student
    built = run_builders(builders, student, context, first, is_new or student.new_head)
    built.model.eval()
    if recipe.dropout is not None:
        set_dropout(built.model, recipe.dropout)
    name = head_name(first)
    return with_heads(StudentModels({name: built.model}, (name,), built.tokenizer), data_sets, recipe.seed)


def reshape(
    round_: Round, recipe: Recipe, student: StudentModels, start: StudentModels, data_sets: list[DataSet]
) -> StudentModels:
    """Apply the builders that a stage lists under `reshape`. `start`: what they get as `context.start`."""
    if not round_.stage.reshape:
        return student
    first, name = data_sets[0], student.trained[0]
    context = BuildContext(
        Student(start.heads.get(name, start.models[0]), start.tokenizer),
        recipe.seed,
        train_texts(data_sets),
        first.has_pairs,
        first.loaded_teacher,
        round_.repetition,
    )
    reshaped = run_builders(round_.stage.reshape, student.students[0], context, first)
    heads = {name: reshaped.model}
    for other, model in student.heads.items():
        if other != name:
            same = model is student.heads[name]  # tasks over the vocabulary share one model
            made = list(heads.values())
            heads[other] = reshaped.model if same else moved_head(model, made, mix(recipe.seed, other, "moved"))
    return StudentModels(heads, student.trained, reshaped.tokenizer)


def run_builders(
    builders: Builders, student: Student, context: BuildContext, data: DataSet, new_head: bool = False
) -> Student:
    """Reshape a model for a data set. `new_head`: its head has random weights already."""
    # an output layer that was scaled before: that of the student, or of the weights that it is rewound to
    before = [output_layer(model) for model in (student.model, context.start.model)]
    for fields in builders:
        builder: Builder = short_forms.make_plugin("students", fields)
        reads_images = builder.images or "ImageClassification" in builder.task_heads
        if isinstance(student.tokenizer, PixelReader) and not reads_images:
            raise InputError(
                f"student.{fields['build']} builds networks for texts; for images write student = 'mlp' or 'cnn'"
            )
        student = builder.build(student, context)
    after = output_layer(student.model)
    if new_head or not any(same_weights(layer, after) for layer in before):
        scale_new_head(student.model, data)
    describe_task(student.model, data)
    return student


def same_weights(layer: nn.Linear | None, other: nn.Linear | None) -> bool:
    return layer is not None and other is not None and torch.equal(layer.weight, other.weight)


def train_texts(data_sets: Sequence[DataSet]) -> Texts:
    """The texts of train alone: words of dev in the vocabulary would make dev easier than test."""
    return partial(texts_of, [data.train for data in data_sets])


def head_name(data: DataSet) -> str:
    return f"{data.name}.{data.task.name}"


def with_heads(student: StudentModels, data_sets: list[DataSet], seed: int, by_teacher: bool = False) -> StudentModels:
    """The student for a stage on these data sets. A head is made when its task first appears.

    `by_teacher`: a new head begins as that of the task's teacher, if it has the same shape.
    """
    heads = dict(student.heads)
    for data in data_sets:
        name = head_name(data)
        if name not in heads:
            others = list(heads.values())
            heads[name] = add_head(others, data, seed)
            if by_teacher and data.loaded_teacher is not None:
                copy_head(data.loaded_teacher.model, heads[name], others, in_part=False)
    return replace(student, heads=heads, trained=tuple(map(head_name, data_sets)))


def add_head(others: Sequence[PreTrainedModel], data: DataSet, seed: int) -> PreTrainedModel:
    """Return a model for another data set: the encoder of the others, with a new head. Heads over the vocabulary are shared."""
    alike = next((model for model in others if head_of_class(type(model).__name__) == data.task.head), None)
    if data.task.vocabulary and alike is not None:
        return alike
    config = copy.deepcopy(others[0].config)
    if data.task.names_outputs:
        config.num_labels = data.task.classes
    if hasattr(config, "pairs"):  # heads over word vectors read one text or two
        config.pairs = data.has_pairs
    with seeded(mix(seed, data.name, "head")):
        model: PreTrainedModel = new_head_model(type(alike) if alike is not None else None, config, data.task.head)
    share_encoder(model, others)
    describe_task(model, data)
    scale_new_head(model, data)
    return model.eval()


def new_head_model(known: type[PreTrainedModel] | None, config: Any, head: str) -> PreTrainedModel:
    """A model with this head and random weights; `known` is its class, if another model of the student has it."""
    if known is not None:
        return known(config)
    try:
        model: PreTrainedModel = auto_class(head).from_config(config, dtype=torch.float32)
    except ValueError as error:
        problem = f"the student, a {config.model_type}, has no head for {head} in transformers"
        raise InputError(f"{problem}; train this stage with another architecture, or in a run of its own") from error
    model.config.architectures = [type(model).__name__]
    return model


def share_encoder(model: PreTrainedModel, others: Sequence[PreTrainedModel]) -> None:
    """Let a model use the encoder of the others. A part that only some heads need, such as BERT's pooler, is shared by those."""
    base = model.base_model
    for name, own in list(base.named_children()):
        theirs = (getattr(other.base_model, name, None) for other in others)
        part = next((part for part in theirs if part is not None), None)
        if own is not None and part is not None:
            setattr(base, name, part)
    base.config = others[0].base_model.config  # its modules read settings such as the kind of attention there
    model.tie_weights()


def copy_head(
    source: PreTrainedModel, target: PreTrainedModel, others: Sequence[PreTrainedModel], in_part: bool
) -> None:
    """Copy the weights outside the encoder, except for those that `target` shares with others, which are trained already.

    `in_part`: also if only some of them have the same shape.
    """
    shared = {id(parameter) for other in others for parameter in other.parameters()}
    ours = {name: weight for name, weight in head_weights(target).items() if id(weight) not in shared}
    theirs = head_weights(source)
    fitting = [name for name, weight in ours.items() if name in theirs and theirs[name].shape == weight.shape]
    if in_part or len(fitting) == len(ours):
        with torch.no_grad():
            for name in fitting:
                ours[name].copy_(theirs[name])


def head_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if in_head(model, name)}


def moved_head(old: PreTrainedModel, others: Sequence[PreTrainedModel], seed: int) -> PreTrainedModel:
    """A model with the head of `old` on the encoder of others; weights that do not fit it are new."""
    config = copy.deepcopy(others[0].config)
    for field in ("id2label", "label2id", "problem_type", "architectures"):
        setattr(config, field, copy.deepcopy(getattr(old.config, field)))
    if hasattr(old.config, "pairs"):
        config.pairs = old.config.pairs
    head = head_of_class(type(old).__name__)
    assert head is not None
    with seeded(seed):
        # the encoder may have got layers of other shapes, which is another class
        model = new_head_model(None if is_reshaped(config) else type(old), config, head)
    share_encoder(model, others)
    copy_head(old, model, others, in_part=True)
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
