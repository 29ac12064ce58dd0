"""Train a student stage by stage: ask the teacher for what the method needs, train, and keep the result."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator

from potstill.errors import InputError
from potstill.models.anatomy import layer_count
from potstill.models.student import save_student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.build import StudentModels, build, reshape
from potstill.runs.compatibility import check_method, check_tokens, check_widths
from potstill.runs.data_set import DataSet, selection_metric
from potstill.runs.dev_scores import EpochScorer, scored_splits, scores_to_pass
from potstill.runs.learning_check import still_rising
from potstill.runs.make_examples import MakeWithTeacher, epoch_changes, run_maker, stage_examples
from potstill.runs.planning.timing import expected_time
from potstill.signals import Wants
from potstill.system import ranks
from potstill.system.display import Display
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint
from potstill.training.logs import dev_scores, follow
from potstill.training.loop import Step, train
from potstill.training.setup import Training, teacher_layers
from potstill.training.target_scale import target_scale_of

log = logging.getLogger(__name__)

WHILE_TRAINING = ("checkpoints", "best", "ends")  # folders that are removed when a stage is finished


@dataclass(frozen=True)
class Run:
    """What every stage of a run shares. Each cell of a grid, and each baseline, is a run with its own recipe and folder."""

    recipe: Recipe
    data_sets: list[DataSet]
    folder: Path
    accelerator: Accelerator
    display: Display


@dataclass(frozen=True)
class StageInputs:
    """One stage of a run, and the student as the stage finds it. The stage trains it in place."""

    run: Run
    number: int
    student: StudentModels

    @property
    def stage(self) -> Stage:
        return self.run.recipe.stage[self.number]

    @property
    def data_sets(self) -> list[DataSet]:
        return self.run.data_sets

    @property
    def folder(self) -> Path:
        return self.run.folder / "stages" / str(self.number)


@dataclass(frozen=True)
class Trained(StudentModels):
    dev: float  # the score of these weights on dev
    rows: tuple[int, ...]  # training rows in an epoch of each stage, over all data sets


def train_student(run: Run, start_at: Path | None = None) -> Trained:
    """Build the student and train all stages. A finished stage is loaded instead of trained again.

    `start_at`: the checkpoint to continue from, instead of the newest one.
    """
    student = build(run.recipe, run.data_sets)
    dev, rows = 0.0, []
    for number, stage in enumerate(run.recipe.stage):
        student = reshape(stage, run.recipe, student, run.data_sets)
        inputs = StageInputs(run, number, student)
        folder = run.folder / "finished" / str(number)
        if (finished := finished_stage(folder)) is not None:
            for head, model in enumerate(student.models):
                model.load_state_dict(finished.tensors(str(head)))
            dev = float(finished.state["dev"])
            rows.append(epoch_rows(inputs))
        else:
            training = make_training(inputs)
            dev = train_stage(inputs, training, start_at)
            rows.append(sum(len(source.examples) for source in training.sources))
            if ranks.is_first():
                tensors = {str(head): dict(model.state_dict()) for head, model in enumerate(student.models)}
                checkpoints.save(folder, 1, tensors, {"dev": dev})
                remove_checkpoints(inputs.folder)
            ranks.wait()
    return Trained(student.models, student.tokenizer, dev, tuple(rows))


@ranks.on_first
def finished_stage(folder: Path) -> Checkpoint | None:
    """The result of a stage that was finished before."""
    return checkpoints.newest(folder)


def remove_checkpoints(folder: Path) -> None:
    for name in WHILE_TRAINING:
        shutil.rmtree(folder / name, ignore_errors=True)


def train_stage(inputs: StageInputs, training: Training, start_at: Path | None) -> float:
    """Train the student in place; return the dev score of the weights that were kept."""
    display, stage = inputs.run.display, inputs.stage
    for data, source, wants in zip(inputs.data_sets, training.sources, teacher_wants(training), strict=True):
        if not source.changes:
            with display.bar(f"asking the teacher ({data.name})", len(source.examples)) as bar:
                data.teacher.remember(source, wants, bar.advance)
    resume = checkpoint_to_resume(inputs.folder, inputs.number, start_at, stage)
    if resume:
        display.say(f"continuing at step {resume.step} from {resume.folder}")
    if not display.quiet:
        display.say(expected_time(training, resume.step if resume else 0))
    steps = train(training, resume)
    if not ranks.is_first():
        return exhaust(steps)
    dev = follow(steps, inputs.folder, resume, inputs.run.recipe.tracker, display)
    if advice := still_rising(dev_scores(inputs.folder), stage.optimizer.full_rate, stage.passes):
        display.say(advice)
    return dev


def exhaust(steps: Generator[Step, None, float]) -> float:
    """Take every step silently, and return what the generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return float(end.value)


def make_training(inputs: StageInputs, make: MakeWithTeacher = run_maker) -> Training:
    """Make the examples of a stage and check that the method can be used on them."""
    run, stage, data_sets = inputs.run, inputs.stage, inputs.data_sets
    models, tokenizer = inputs.student.models, inputs.student.tokenizer
    name, seed = stage.method["name"], run.recipe.seed
    method = short_forms.make_plugin("methods", stage.method)
    changes = epoch_changes(stage)
    asks = [
        check_method(name, method, model, data, bool(changes)) for model, data in zip(models, data_sets, strict=True)
    ]
    check_widths(data_sets, asks)
    if stage.stop_teaching is not None and all(wants == Wants() for wants in asks):
        raise InputError(
            f"stop_teaching: method '{name}' never asks a teacher; use 'soft_targets', or omit stop_teaching"
        )
    sources = []
    for data, model, wants in zip(data_sets, models, asks, strict=True):
        examples = stage_examples(stage, data, wants != Wants(), seed, run.display, make)
        source = data.tokenised(examples, tokenizer, "train")
        check_tokens(name, data, source, wants)
        scale = target_scale_of(data.task, model, data.train, data.dev)
        sources.append(replace(source, changes=changes, seed=(seed, inputs.number), target_scale=scale))
    metrics = [selection_metric(run.recipe, data) for data in data_sets]
    return Training(
        models,
        [data.teacher for data in data_sets],
        sources,
        method,
        stage,
        seed,
        inputs.number,
        inputs.folder,
        run.accelerator,
        EpochScorer(inputs.student, data_sets, metrics, scored_splits(data_sets, sources, tokenizer)),
        run.recipe.save_every,
        scores_to_pass(stage.stop_teaching, data_sets, metrics),
    )


def teacher_wants(training: Training) -> list[Wants]:
    """What the method asks of the teacher of each data set."""
    return [training.wants(number)[1] for number in range(len(training.models))]


def epoch_rows(inputs: StageInputs) -> int:
    """Training rows in an epoch of the stage, over all data sets."""
    method = short_forms.make_plugin("methods", inputs.stage.method)
    rows = 0
    for model, data in zip(inputs.student.models, inputs.data_sets, strict=True):
        wants = method.wants(layer_count(model), teacher_layers(data.teacher, model))[1]
        rows += len(stage_examples(inputs.stage, data, wants != Wants(), inputs.run.recipe.seed))
    return rows


@ranks.on_first
def checkpoint_to_resume(folder: Path, number: int, start_at: Path | None, stage: Stage) -> Checkpoint | None:
    """The checkpoint `start_at` if it belongs to this stage (one of another run: to the first), else the newest whole one."""
    mine = folder / "checkpoints"
    if start_at is not None and (
        start_at.parent.resolve() == mine.resolve()
        or (number == 0 and folder.parent.resolve() not in start_at.resolve().parents)
    ):
        return checkpoints.load(start_at)
    newest = checkpoints.newest(mine)
    if newest is not None and (problem := lost_epochs(folder, newest, stage)):
        log.warning("%s; this stage is trained again from its beginning", problem)
        remove_checkpoints(folder)  # later steps than those to come would be taken for the newest
        return None
    return newest


def lost_epochs(folder: Path, newest: Checkpoint, stage: Stage) -> str | None:
    """The problem with weights of earlier epochs that the end of the stage will need; None if all are whole."""
    progress = newest.state["progress"]
    epoch_ends = [int(epoch["step"]) for epoch in progress["history"]]
    needed = {
        "best": ("best", [progress["best_step"]] if progress["best_step"] else []),
        "average": ("ends", epoch_ends[-stage.averaged :]),
        "last": ("", []),
    }
    name, steps = needed[stage.keep]
    for step in steps:
        try:
            checkpoints.load(folder / name / f"step-{step:08d}")
        except InputError as error:
            return str(error).partition(";")[0]
    return None


@ranks.on_first
def save_models(trained: Trained, folders: list[Path]) -> None:
    """Save each model in its folder. A model that several data sets share is saved once."""
    first, *others = zip(trained.students, folders, strict=True)
    for student, folder in [first, *(other for other in others if other[0].model is not first[0].model)]:
        save_student(student, folder)
