"""From a stage of a recipe to a `Training`: its examples, its method and whether it can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from transformers import PreTrainedModel

from potstill.data.examples import Examples
from potstill.data.making import DataMaker, EpochDataMaker, MakeContext, TeacherDataMaker
from potstill.errors import InputError
from potstill.measuring.measurements import LayerMap
from potstill.models.anatomy import layer_count
from potstill.models.builder import Builder, Student
from potstill.models.loading import load_config
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Round, Stage
from potstill.runs.build import StudentModels, build
from potstill.runs.data_set import DataSet, selection_metric
from potstill.runs.dev_scores import DISTANCE, dev_scores, scores_to_pass
from potstill.runs.prepare import DataSets
from potstill.signals import Wants
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.system.randomness import mix
from potstill.tasks.task import Task
from potstill.training.giving import (
    Problem,
    problem_of_head,
    problem_of_model,
    problem_of_task,
    problem_of_teacher,
    problem_of_tokens,
    problem_of_widths,
)
from potstill.training.method import Method
from potstill.training.setup import Training, chosen_by_stage, teacher_layers
from potstill.training.target_scale import target_scale_of

MakeWithTeacher = Callable[[TeacherDataMaker, Examples, MakeContext], Examples]
"""Runs a data maker that asks the teacher, as `plan` does."""


@dataclass(frozen=True)
class Run:
    """What every stage of a run shares. Each cell of a grid, and each baseline, is a run with its own recipe and folder."""

    recipe: Recipe
    data_sets: DataSets
    folder: Path
    accelerator: Accelerator
    display: Display
    first_students: dict[str, StudentModels] = field(default_factory=dict)  # one at most, see `first_student`


def first_student(run: Run, keep: bool = False) -> StudentModels:
    """The student before its first stage. `keep`: also keep a copy, so that the next call need not build it again."""
    recipe, first_stage = run.recipe, run.recipe.stage[0]
    deciding = recipe.model_dump_json(include={"start", "student", "teacher", "dropout", "seed", "length"})
    key = f"{deciding} {[data.model_dump_json() for data in recipe.data_of(first_stage)]}"
    student = run.first_students.pop(key, None)
    run.first_students.clear()
    if student is None:
        student = build(recipe, run.data_sets.of(first_stage), run.data_sets.take_start(recipe))
    if keep:
        run.first_students[key] = student.clone()
    return student


def make_training(run: Run, round_: Round, student: StudentModels, make: MakeWithTeacher | None = None) -> Training:
    """Make the examples of a stage and check that the method can be used on them. The stage trains the student in place."""
    stage, data_sets, seed = round_.stage, run.data_sets.of(round_.stage), run.recipe.seed
    name, number = stage.method["name"], round_.number
    method = short_forms.make_plugin("methods", stage.method).in_round(round_.repetition)
    changes = tuple(maker.change for maker in data_makers(stage) if isinstance(maker, EpochDataMaker))
    pairs = list(zip(student.models, data_sets, strict=True))
    asks = [check_method(name, method, model, data, bool(changes) or never_again(data.task)) for model, data in pairs]
    refuse(name, problem_of_widths((data.teacher for data in data_sets), asks))
    if stage.stop_teaching is not None and all(wants == Wants() for wants in asks):
        raise InputError(
            f"stop_teaching: method '{name}' never asks a teacher; use 'soft_targets', or omit stop_teaching"
        )
    sources = []
    for (model, data), wants in zip(pairs, asks, strict=True):
        pupil = Student(model, student.tokenizer)
        examples = stage_examples(round_, data, wants != Wants(), seed, run.display, make, pupil)
        source = data.tokenised(examples, student.tokenizer, "train")
        refuse(name, problem_of_tokens(source, wants))
        scale = target_scale_of(data.task, model, data.train, data.dev)
        sources.append(replace(source, changes=changes, seed=(seed, number), target_scale=scale))
    metrics = [selection_metric(run.recipe, data) for data in data_sets]
    precision = "float32" if run.recipe.precision == "auto" else run.recipe.precision  # only runs and plans measure
    learns_logits = all(wants.logits for wants in asks)
    heat = stage.method.get("temperature")
    scores = dev_scores(
        run.recipe,
        data_sets,
        student.students,
        sources,
        precision,
        learns_logits,
        heat if isinstance(heat, float) else 1.0,
    )
    training = Training(
        student.models,
        [data.teacher for data in data_sets],
        sources,
        method,
        stage,
        seed,
        number,
        RunFolder(run.folder).stage(number),
        run.accelerator,
        scores,
        run.recipe.save_every,
        scores_to_pass(stage.stop_teaching, data_sets, metrics),
        round_.repetition,
        precision,
        DISTANCE if scores.followed else None,
    )
    if not chosen_by_stage(training):
        raise InputError("trains selects no parameter of the student; name a layer, 'embeddings' or 'head'")
    if (step := training.keeps_step) is not None and step > training.steps[1]:
        raise InputError(f"rewind = {step}: the stage has {training.steps[1]} steps; write a smaller number")
    return training


def never_again(task: Task) -> bool:
    """Whether what the task draws differs in every epoch."""
    return task.draws and task.masks is None


def teacher_wants(training: Training) -> list[Wants]:
    """What the method asks of the teacher of each data set."""
    return [training.wants(number)[1] for number in range(len(training.models))]


def check_method(name: str, method: Method, model: PreTrainedModel, data: DataSet, changing: bool = False) -> Wants:
    """Refuse a method that cannot be used here; return what it asks of the teacher.

    `changing`: the examples change in every epoch.
    """
    task, teacher = data.task, data.teacher
    try:
        of_student, of_teacher = method.wants(layer_count(model), teacher_layers(teacher, model))
    except InputError as error:  # its layer map does not fit, perhaps because a side has no layers
        sides = (side for side in (model, teacher.model) if side is not None)
        refuse(name, *(problem_of_model(side, Wants(hidden=(1,)), task) for side in sides))
        raise error from None
    refuse(
        name,
        problem_of_task(method, task),
        problem_of_model(model, of_student, task),
        problem_of_head(data.loaded_teacher, of_teacher, task),
        problem_of_teacher(teacher, data.has_teacher, of_teacher, task, changing),
    )
    return of_teacher


def check_later_stages(recipe: Recipe, student: StudentModels) -> None:
    """Refuse a layer map of a later stage that does not fit, before hours are spent on the first one.

    A builder between two stages may change the number of layers, so nothing behind it is checked.
    """
    layers = layer_count(student.models[0])
    for round_ in recipe.rounds[1:] if layers else []:
        if round_.stage.reshape:
            return
        method = short_forms.make_plugin("methods", round_.stage.method).in_round(round_.repetition)
        for teacher in dict.fromkeys(data.teacher for data in recipe.data_of(round_.stage) if data.teacher):
            if theirs := getattr(load_config(teacher), "num_hidden_layers", None):
                method.wants(layers, theirs)


def refuse(name: str, *problems: Problem | None) -> None:
    """Raise the first problem, if there is any, with what to write instead."""
    for problem in filter(None, problems):
        raise InputError(f"method '{name}' {problem.reason}; {problem.instead}")


def layer_map(run: Run, round_: Round, training: Training) -> LayerMap | None:
    """Which layer of the teacher teaches which layer of the student, on the first data set; None without two stacks of layers.

    No pairs: only logits are compared.
    """
    teacher = run.data_sets.of(round_.stage)[0].loaded_teacher
    ours, theirs = layer_count(training.models[0]), layer_count(teacher.model) if teacher is not None else 0
    if 0 in (ours, theirs):
        return None
    compared = [side.layers for side in training.wants(0)]
    return LayerMap(
        stage=round_.place,
        method=round_.stage.method["name"],
        student_layers=ours,
        teacher_layers=theirs,
        pairs=list(dict.fromkeys(zip(*compared, strict=True))) if len(compared[0]) == len(compared[1]) else [],
        kept=kept_layers(run.recipe, theirs) if round_.place == 0 else None,
    )


def kept_layers(recipe: Recipe, layers: int) -> list[int] | None:
    """The layers of the teacher that the student started as; None if it started as something else."""
    if recipe.start is not None or not recipe.student or any(stage.reshape for stage in recipe.stage):
        return None
    kept: list[int] = list(range(1, layers + 1))
    for fields in recipe.student:
        builder: Builder = short_forms.make_plugin("students", fields)
        if (of_these := builder.kept(len(kept))) is None:
            return None
        kept = [kept[place - 1] for place in of_these]
    return kept


def data_makers(stage: Stage) -> list[DataMaker]:
    return [short_forms.make_plugin("data", fields) for fields in stage.data]


def stage_examples(
    round_: Round,
    data: DataSet,
    asks_teacher: bool,
    seed: int,
    display: Display | None = None,
    make: MakeWithTeacher | None = None,
    student: Student | None = None,
) -> Examples:
    """Run the stage's data makers on train. A method that does not ask the teacher learns from labelled rows only."""
    stage, examples = round_.stage, data.train
    context = MakeContext(seed, data.task, display, data.loaded_teacher, data.length, student, round_.repetition)
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
