"""The cost of each stage of a run, from a few of its batches that are timed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order
from potstill.inference.answers import at_once
from potstill.models.anatomy import encoder_layers, width, word_embeddings
from potstill.models.generation.decoding import decoder
from potstill.models.student import Student
from potstill.recipe.schema import Stage
from potstill.runs.build import StudentModels, build, reshape
from potstill.runs.data_set import DataSet
from potstill.runs.planning.batches import Batches, epoch_batches, reading_batches, token_counts
from potstill.runs.planning.flops import forward, training_step
from potstill.runs.planning.timing import CostLaw, TrainingCost, time_decoding, time_scoring, time_training
from potstill.runs.stage_setup import MakeWithTeacher, Run, make_training, scored_splits, teacher_wants
from potstill.signals import Wants
from potstill.tasks.metrics.texts import BEAM
from potstill.tasks.task import Task
from potstill.training.setup import Training
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

MOMENTS = {"adamw": 2, "adadelta": 2, "sgd": 1}  # that an optimizer keeps of each parameter
FLOAT = 4  # bytes
SUMMED = ("runs", "steps", "rows", "tokens", "operations", "seconds")


@dataclass(frozen=True)
class Work:
    """An amount of work, and its seconds on this machine. In sums, the figures per epoch are those of the last summand."""

    runs: int = 0
    rows_per_epoch: int = 0
    tokens_per_epoch: int = 0
    steps: int = 0
    rows: int = 0
    tokens: int = 0  # without padding, as in steps.csv
    operations: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return replace(other, **{name: getattr(self, name) + getattr(other, name) for name in SUMMED})

    def __mul__(self, times: int) -> Work:
        return replace(self, **{name: times * getattr(self, name) for name in SUMMED})

    def faster(self, times: float) -> Work:
        """The same work on a machine that is so many times as fast."""
        return replace(self, seconds=self.seconds / times)

    def shared(self, devices: int, largest_block: float) -> Work:
        """Work that devices share in blocks. `largest_block`: its seconds."""
        return replace(self, seconds=max(self.seconds / devices, largest_block))


@dataclass(frozen=True)
class StageCost:
    sources: list[TokenisedSet[Task]]
    asks: list[Wants]  # of the teacher of each data set, before training
    batches: Batches  # the micro-batches of the first epoch; other epochs are similar
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
    def token_counts(self) -> np.ndarray:
        """(rows,) of all data sets, one after the other."""
        return np.concatenate([token_counts(source) for source in self.sources])

    def first_steps(self, stage: Stage, steps: int, *seed: int | str) -> Work:
        """The rows and tokens of the first steps of an epoch, which depend on its order."""
        rows = np.concatenate(epoch_order(all_lengths(self.sources)[0], stage.batch, *seed)[:steps])
        return Work(rows=len(rows), tokens=int(self.token_counts[rows].sum()))


def stage_costs(run: Run, make: MakeWithTeacher) -> list[StageCost]:
    """The cost of each stage, with the student as the stage finds it.

    The run's folder holds the teacher's answers for the timed rows; `make` replaces what the teacher would write.
    """
    student = build(run.recipe, run.data_sets)
    costs = []
    for number, stage in enumerate(run.recipe.stage):
        student = reshape(stage, run.recipe, student, run.data_sets)
        costs.append(stage_cost(run, student, make_training(run, number, student, make)))
    return costs


def stage_cost(run: Run, student: StudentModels, training: Training) -> StageCost:
    asks, batches = teacher_wants(training), epoch_batches(training)
    few = batches.sample((0.0, 0.33, 0.67, 1.0), (0.0, 0.5, 1.0))
    teachers = teachers_of(training, asks, few, run.folder / str(training.number))
    timed = time_training(replace(training, teachers=teachers), few, turns=3, memory=True)
    assert timed.activations is not None
    scoring, testing = evaluation_work(run.data_sets, student, training)
    parameters = {id(parameter): parameter for model in training.models for parameter in model.parameters()}
    moments = MOMENTS[training.stage.optimizer.name]
    unused = word_embeddings(training.models[0]).weight.numel() - timed.copied if timed.copied else 0
    tasks = [data.task for data in run.data_sets]
    return StageCost(
        training.sources,
        asks,
        batches,
        timed.batch.of(batches),
        training_step(training, batches),
        timed,
        scoring,
        testing,
        heads=len({id(model) for model in training.models}),
        weights=FLOAT * sum(parameter.numel() for parameter in parameters.values()),
        gradients=FLOAT * timed.trained,
        moments=FLOAT * moments * timed.trained,
        saved_moments=FLOAT * moments * (timed.trained + unused),
        activations=int(timed.activations.of(batches).max()) + max(map(scoring_bytes, training.models, tasks)),
    )


def teachers_of(training: Training, asks: list[Wants], batches: Batches, folder: Path) -> list[Teacher]:
    """Teachers with the answers for these batches in a memory of their own: a plan does not write to the real one."""
    teachers = []
    for number, (teacher, source, wants) in enumerate(zip(training.teachers, training.sources, asks, strict=True)):
        if teacher.model is not None and not source.needs_live_teacher(wants):
            teacher = Teacher(teacher.model, Memory(folder / str(number)), teacher.device)
            of_data = batches.take(np.flatnonzero(batches.data == number)).positions
            if of_data:
                teacher.remember(replace(source, examples=source.examples.take(np.concatenate(of_data))), wants)
        teachers.append(teacher)
    return teachers


def evaluation_work(data_sets: list[DataSet], models: StudentModels, training: Training) -> tuple[Work, Work]:
    """The work of scoring after each epoch, and of dev and tests at the end."""
    scoring = testing = Work()
    splits = scored_splits(data_sets, training.sources, models.tokenizer)
    for number, (data, student) in enumerate(zip(data_sets, models.students, strict=True)):
        law = scoring_law(student, data)
        scoring += sum((scoring_work(student, law, sources[number], (1,)) for sources in splits.values()), Work())
        testing += testing_work(student, law, data)
    return replace(scoring, runs=1), replace(testing, runs=1)


def teacher_testing_work(data: DataSet) -> Work:
    """The work of a generative teacher, which decodes dev and tests for the table; other answers are in its memory."""
    if (teacher := data.loaded_teacher) is None or not data.task.generates:
        return Work()
    return replace(testing_work(teacher, scoring_law(teacher, data), data), runs=1)


def testing_work(student: Student, law: CostLaw, data: DataSet) -> Work:
    sources = (data.for_scoring(examples, student.tokenizer) for examples in data.evaluation_splits.values())
    return sum((scoring_work(student, law, source, (1, BEAM)) for source in sources), Work())


def scoring_law(student: Student, data: DataSet) -> CostLaw:
    source = data.for_scoring(data.dev, student.tokenizer)
    return time_scoring(student.model, source, reading_batches([source], at_once(source.task)).sample((0.0, 0.5, 1.0)))


def scoring_work(student: Student, law: CostLaw, source: TokenisedSet[Task], beams: Sequence[int]) -> Work:
    """The work of reading a split, and of decoding it with each of these beams if the task decodes."""
    batches = reading_batches([source], at_once(source.task))
    rows, operations = source.examples.index, float(forward(student.model, batches).sum())
    work = Work(
        rows=len(rows),
        tokens=int(token_counts(source).sum()),
        operations=operations,
        seconds=float(law.of(batches).sum()),
    )
    if not source.task.decodes or not len(rows):
        return work
    # an untrained model does not know where to stop: it writes as many tokens as the gold texts have on average
    longest = max(1, round(float(source.task.predictions(source.student, rows).mean())))
    seconds = time_decoding(decoder(student, longest=longest), source.examples, [(beam, 1) for beam in beams])
    return work + Work(operations=sum(beams) * operations, seconds=seconds)  # at most: the encoder runs only once


def scoring_bytes(model: PreTrainedModel, task: Task) -> int:
    """Memory in the widest part of a layer: its input, its output, and what surrounds it.

    The logits of generative models are wider: as computed, at the positions that are read, shifted, and as exponentials.
    """
    part = next(iter(encoder_layers(model)), model)
    outputs = [module.out_features for module in part.modules() if isinstance(module, nn.Linear)]
    widest = max(*outputs, *(8 * module.hidden_size for module in part.modules() if isinstance(module, nn.LSTM)), 0)
    logits = 4 * word_embeddings(model).num_embeddings if task.generates else 0
    return FLOAT * at_once(task) * max(2 * widest + 3 * width(model), logits)
