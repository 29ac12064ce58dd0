"""The cost of each stage of a run, from a few of its batches that are timed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order
from potstill.inference.answers import at_once
from potstill.models.anatomy import encoder_layers, width, word_embeddings
from potstill.models.student import Student
from potstill.recipe.schema import Recipe
from potstill.runs.build import build, reshape
from potstill.runs.data_set import DataSet
from potstill.runs.dev_scores import scored_splits
from potstill.runs.make_examples import MakeWithTeacher, run_maker
from potstill.runs.planning.batch_sizes import (
    BatchRows,
    BatchSizes,
    batch_sizes,
    epoch_batches,
    reading_batches,
    token_count,
    token_counts,
)
from potstill.runs.planning.flops import forward, training_step
from potstill.runs.planning.timing import CostLaw, TrainingCost, batches_at, time_decoding, time_scoring, time_training
from potstill.runs.stages import Run, StageInputs, make_training, teacher_wants
from potstill.signals import Wants
from potstill.tasks.metrics.texts import BEAM
from potstill.tasks.task import Task
from potstill.training.setup import Training
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

MOMENTS = {"adamw": 2, "adadelta": 2, "sgd": 1}  # that an optimizer keeps of each parameter
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Work:
    """Independent batches: teacher queries and evaluation."""

    rows: int = 0
    tokens: int = 0  # without padding
    operations: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class StageCost:
    sources: list[TokenisedSet[Task]]
    asks: list[Wants]  # of the teacher of each data set, before training
    sizes: BatchSizes  # of the micro-batches of the first epoch; other epochs are similar
    seconds: np.ndarray  # (batches,)
    operations: np.ndarray  # (batches,)
    timed: TrainingCost
    scoring: Work  # at the end of every epoch
    testing: Work  # dev and tests at the end of the run
    heads: int  # networks that are saved: one for each data set, or one for all
    weights: int  # bytes
    gradients: int  # bytes
    moments: int  # bytes in the device's memory
    saved_moments: int  # bytes on disk, with those of unused word embeddings
    activations: int  # bytes of the largest micro-batch, and of the largest scoring, which seldom reuses its memory

    @property
    def rows(self) -> int:
        return sum(len(source.examples) for source in self.sources)

    @property
    def tokens(self) -> int:
        return sum(map(token_count, self.sources))

    def first_steps(self, recipe: Recipe, seed: int, number: int, epoch: int, steps: int) -> tuple[int, int]:
        """Rows and tokens of the first steps of an epoch, which depend on its order."""
        lengths, _ = all_lengths(self.sources)
        order = epoch_order(lengths, recipe.stage[number].batch, seed, number, epoch, "order")
        rows = np.concatenate(order[:steps])
        counts = np.concatenate([token_counts(source) for source in self.sources])
        return len(rows), int(counts[rows].sum())


def stage_costs(run: Run, make: MakeWithTeacher = run_maker) -> list[StageCost]:
    """The cost of each stage, with the student as the stage finds it.

    The run's folder holds the teacher's answers for the timed rows; `make` replaces what the teacher would write.
    """
    student = build(run.recipe, run.data_sets)
    costs = []
    for number, stage in enumerate(run.recipe.stage):
        student = reshape(stage, run.recipe, student, run.data_sets)
        inputs = StageInputs(run, number, student)
        costs.append(stage_cost(inputs, make_training(inputs, make)))
    return costs


def stage_cost(inputs: StageInputs, training: Training) -> StageCost:
    asks = teacher_wants(training)
    batches = epoch_batches(training)
    sizes = batch_sizes(batches, training.sources)
    which = batches_at(sizes, (0.0, 0.33, 0.67, 1.0), (0.0, 0.5, 1.0))
    few = [batches[number] for number in which]
    prepared = replace(training, teachers=teachers_of(training, asks, few, inputs.run.folder / str(inputs.number)))
    timed = time_training(prepared, few, sizes.take(which), turns=3, memory=True)
    assert timed.activations is not None
    scoring, testing = evaluation_work(inputs, training)
    parameters = {id(parameter): parameter for model in training.models for parameter in model.parameters()}
    moments = MOMENTS[training.stage.optimizer.name]
    unused = word_embeddings(training.models[0]).weight.numel() - timed.copied if timed.copied else 0
    tasks = [data.task for data in inputs.data_sets]
    return StageCost(
        training.sources,
        asks,
        sizes,
        timed.batch.of(sizes),
        training_step(training, sizes),
        timed,
        scoring,
        testing,
        heads=len({id(model) for model in training.models}),
        weights=FLOAT * sum(parameter.numel() for parameter in parameters.values()),
        gradients=FLOAT * timed.trained,
        moments=FLOAT * moments * timed.trained,
        saved_moments=FLOAT * moments * (timed.trained + unused),
        activations=int(timed.activations.of(sizes).max()) + max(map(scoring_bytes, training.models, tasks)),
    )


def teachers_of(training: Training, asks: list[Wants], batches: list[BatchRows], folder: Path) -> list[Teacher]:
    """Teachers with the answers for these batches in a memory of their own: a plan does not write to the real one."""
    teachers = []
    for number, (teacher, source, wants) in enumerate(zip(training.teachers, training.sources, asks, strict=True)):
        if teacher.model is not None and not source.needs_live_teacher(wants):
            teacher = Teacher(teacher.model, Memory(folder / str(number)), teacher.device)
            positions = [batch.positions for batch in batches if batch.data == number]
            if positions:
                teacher.remember(replace(source, examples=source.examples.take(np.concatenate(positions))), wants)
        teachers.append(teacher)
    return teachers


def evaluation_work(inputs: StageInputs, training: Training) -> tuple[Work, Work]:
    """The work of scoring after each epoch, and of dev and tests at the end."""
    scoring = testing = Work()
    tokenizer = inputs.student.tokenizer
    splits = scored_splits(inputs.data_sets, training.sources, tokenizer)
    for number, (data, student) in enumerate(zip(inputs.data_sets, inputs.student.students, strict=True)):
        law = scoring_law(student.model, data.for_scoring(data.dev, tokenizer))
        for sources in splits.values():
            scoring += reading_work(student.model, law, sources[number])
            scoring += decoding_work(student, sources[number], (1,))
        testing += testing_work(student, law, data)
    return scoring, testing


def testing_work(student: Student, law: CostLaw, data: DataSet) -> Work:
    work = Work()
    for examples in data.evaluation_splits.values():
        source = data.for_scoring(examples, student.tokenizer)
        work += reading_work(student.model, law, source) + decoding_work(student, source, (1, BEAM))
    return work


def teacher_testing_work(data: DataSet) -> Work:
    """The work of a generative teacher, which decodes dev and tests for the table; other answers are in its memory."""
    if data.loaded_teacher is None or not data.task.generates:
        return Work()
    teacher = data.loaded_teacher
    return testing_work(teacher, scoring_law(teacher.model, data.for_scoring(data.dev, teacher.tokenizer)), data)


def scoring_law(model: PreTrainedModel, source: TokenisedSet[Task]) -> CostLaw:
    batches = reading_batches([source], at_once(source.task))
    sizes = batch_sizes(batches, [source])
    which = batches_at(sizes, (0.0, 0.5, 1.0))
    return time_scoring(model, source, [batches[number] for number in which], sizes.take(which))


def reading_work(model: PreTrainedModel, law: CostLaw, source: TokenisedSet[Task]) -> Work:
    sizes = batch_sizes(reading_batches([source], at_once(source.task)), [source])
    operations = float(forward(model, sizes).sum())
    return Work(len(source.examples), token_count(source), operations, float(law.of(sizes).sum()))


def decoding_work(student: Student, source: TokenisedSet[Task], beams: Sequence[int]) -> Work:
    """The work of decoding with each of these beams, if the task decodes; texts are as long as the gold texts."""
    if not source.task.decodes or not len(source.examples):
        return Work()
    sizes = batch_sizes(reading_batches([source], at_once(source.task)), [source])
    operations = sum(beams) * float(forward(student.model, sizes).sum())  # an upper bound: the encoder runs only once
    return Work(operations=operations, seconds=time_decoding(student, source, beams))


def scoring_bytes(model: PreTrainedModel, task: Task) -> int:
    """Memory in the widest part of a layer: its input, its output, and what surrounds it.

    The logits of generative models are wider: as computed, at the positions that are read, shifted, and as exponentials.
    """
    part = next(iter(encoder_layers(model)), model)
    outputs = [module.out_features for module in part.modules() if isinstance(module, nn.Linear)]
    widest = max(*outputs, *(8 * module.hidden_size for module in part.modules() if isinstance(module, nn.LSTM)), 0)
    logits = 4 * word_embeddings(model).num_embeddings if task.generates else 0
    return FLOAT * at_once(task) * max(2 * widest + 3 * width(model), logits)
