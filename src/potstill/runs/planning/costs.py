"""The cost of a run's stages and of its teachers' answers, from a few batches that are timed on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order
from potstill.data.examples import Examples
from potstill.data.making import MakeContext, TeacherDataMaker
from potstill.data.tokens import tokenise
from potstill.inference.answers import AT_ONCE
from potstill.models.anatomy import encoder_layers, width, word_embeddings
from potstill.models.generation.decoding import decoder
from potstill.models.hooks import listen
from potstill.models.student import Student
from potstill.recipe.schema import Stage
from potstill.runs.build import StudentModels, reshape, with_heads
from potstill.runs.data_set import DataSet
from potstill.runs.dev_scores import scored_splits
from potstill.runs.planning.batches import Batches, epoch_batches, reading_batches, token_counts
from potstill.runs.planning.flops import forward, training_step
from potstill.runs.planning.timing import (
    CostLaw,
    TrainingCost,
    time_decoding,
    time_scoring,
    time_teacher,
    time_training,
)
from potstill.runs.stage_setup import (
    MakeWithTeacher,
    Run,
    first_student,
    make_training,
    teacher_wants,
)
from potstill.signals import Wants, nothing
from potstill.tasks.metrics.texts import BEAM
from potstill.tasks.task import Task
from potstill.training.setup import Training
from potstill.training.teacher import teacher as asking
from potstill.training.teacher.memory import Column, Memory
from potstill.training.teacher.teacher import Teacher

MOMENTS = {"adamw": 2, "adadelta": 2, "sgd": 1}  # that an optimizer keeps of each parameter
FLOAT = 4  # bytes
SUMMED = ("runs", "steps", "rows", "tokens", "operations", "seconds")
COUNTED_AT_ONCE = 4096  # rows
NO_KEYS = np.empty(0, np.int64)


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

    def part(self, share: float) -> Work:
        """A share of the work, as rounds that are tried before the real one."""
        counts = {name: round(share * getattr(self, name)) for name in ("steps", "rows", "tokens")}
        return replace(self, **counts, operations=share * self.operations, seconds=share * self.seconds)

    def faster(self, times: float) -> Work:
        """The same work on a machine that is so many times as fast."""
        return replace(self, seconds=self.seconds / times)

    def shared(self, devices: int, largest_block: float) -> Work:
        """Work that devices share in blocks. `largest_block`: its seconds."""
        return replace(self, seconds=max(self.seconds / devices, largest_block))


@dataclass(frozen=True)
class StageCost:
    data_sets: list[DataSet]
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
    student = first_student(run)
    start, costs = student.clone(), []
    for round_ in run.recipe.rounds:
        data_sets = run.data_sets.of(round_.stage, student.students[0])
        student = with_heads(student, data_sets, run.recipe.seed)
        student = reshape(round_, run.recipe, student, start, data_sets)
        training = make_training(run, round_, student, make)
        costs.append(stage_cost(run, student, training, data_sets))
    return costs


def stage_cost(run: Run, student: StudentModels, training: Training, data_sets: list[DataSet]) -> StageCost:
    asks, batches = teacher_wants(training), epoch_batches(training)
    few = batches.sample((0.0, 0.33, 0.67, 1.0), (0.0, 0.5, 1.0))
    teachers = teachers_of(training, asks, few, run.folder / str(training.number))
    timed = time_training(replace(training, teachers=teachers), few, turns=3, memory=True)
    assert timed.activations is not None
    splits = scored_splits(data_sets, training.sources, student.tokenizer)
    scoring = testing = Work()
    for number, (data, model) in enumerate(zip(data_sets, student.students, strict=True)):
        law = scoring_law(model, data, training.precision)
        scoring += scoring_work(model, law, [sources[number] for sources in splits.values()], (1,))
        testing += testing_work(model, scoring_law(model, data) if training.precision != "float32" else law, data)
    parameters = {id(parameter): parameter for model in training.models for parameter in model.parameters()}
    moments = MOMENTS[training.stage.optimizer.name]
    unused = word_embeddings(training.models[0]).weight.numel() - timed.copied if timed.copied else 0
    tasks = [data.task for data in data_sets]
    return StageCost(
        data_sets,
        training.sources,
        asks,
        batches,
        timed.batch.of(batches),
        training_step(training, batches),
        timed,
        replace(scoring, runs=1),
        replace(testing, runs=1),
        heads=len({id(model) for model in training.models}),
        weights=FLOAT * sum(parameter.numel() for parameter in parameters.values()),
        moments=FLOAT * moments * timed.trained,
        saved_moments=FLOAT * moments * (timed.trained + unused),
        activations=int(timed.activations.of(batches).max()) + max(map(scoring_bytes, training.models, tasks)),
    )


def teachers_of(training: Training, asks: list[Wants], batches: Batches, folder: Path) -> list[Teacher]:
    """Teachers with the answers for these batches in a memory of their own: a plan does not write to the real one."""
    teachers = []
    for number, (teacher, source, wants) in enumerate(zip(training.teachers, training.sources, asks, strict=True)):
        if teacher.model is not None and not source.needs_live_teacher(wants):
            teacher = teacher.with_memory(Memory(folder / str(number)))
            of_data = batches.take(np.flatnonzero(batches.data == number)).positions
            if of_data:
                teacher.remember(replace(source, examples=source.examples.take(np.concatenate(of_data))), wants)
        teachers.append(teacher)
    return teachers


def teacher_testing_work(data: DataSet) -> Work:
    """The work of a generative teacher, which decodes dev and tests for the table; other answers are in its memory."""
    if (teacher := data.loaded_teacher) is None or not data.task.vocabulary:
        return Work()
    return replace(testing_work(teacher, scoring_law(teacher, data), data), runs=1)


def testing_work(student: Student, law: CostLaw, data: DataSet) -> Work:
    sources = (data.for_scoring(examples, student.tokenizer) for examples in data.evaluation_splits.values())
    return scoring_work(student, law, sources, (1, BEAM))


def scoring_law(student: Student, data: DataSet, precision: str = "float32") -> CostLaw:
    source = data.for_scoring(data.dev, student.tokenizer)
    sample = reading_batches([source], AT_ONCE).sample((0.0, 0.5, 1.0))
    return time_scoring(student.model, source, sample, precision)


def scoring_work(student: Student, law: CostLaw, sources: Iterable[TokenisedSet[Task]], beams: Sequence[int]) -> Work:
    """The work of reading these splits, and of decoding them with each of these beams if the task decodes."""
    work = Work()
    for source in sources:
        batches = reading_batches([source], AT_ONCE)
        reading = reading_work([source], forward(student.model, batches), law.of(batches))
        work += reading
        if source.task.decodes and len(rows := source.examples.index):
            # an untrained model does not know where to stop: it writes as many tokens as the gold texts have on average
            longest = max(1, round(float(source.task.predictions(source.student, rows).mean())))
            seconds = time_decoding(decoder(student, longest=longest), source.examples, [(beam, 1) for beam in beams])
            work += Work(operations=sum(beams) * reading.operations, seconds=seconds)  # at most: the encoder runs once
    return work


def reading_work(sources: Sequence[TokenisedSet], operations: np.ndarray, seconds: np.ndarray) -> Work:
    """The work of reading all rows once. `operations`, `seconds`: (batches,)."""
    return Work(
        rows=sum(len(source.examples) for source in sources),
        tokens=sum(int(token_counts(source).sum()) for source in sources),
        operations=float(operations.sum()),
        seconds=float(seconds.sum()),
    )


def scoring_bytes(model: PreTrainedModel, task: Task) -> int:
    """Memory in the widest part of a layer: its input, its output, and what surrounds it.

    Logits over a vocabulary are wider: as computed, at the positions that are read, shifted, and as exponentials.
    """
    part = next(iter(encoder_layers(model)), model)
    outputs = [module.out_features for module in part.modules() if isinstance(module, nn.Linear)]
    widest = max(*outputs, *(8 * module.hidden_size for module in part.modules() if isinstance(module, nn.LSTM)), 0)
    logits = 4 * word_embeddings(model).num_embeddings if task.vocabulary else 0
    return FLOAT * AT_ONCE * max(2 * widest + 3 * width(model), logits)


class TeacherQueries:
    """All that one teacher would be asked over all runs, and its memory as it would be then, without the answers."""

    def __init__(self, teacher: Teacher, model: PreTrainedModel, memory: Memory) -> None:
        self.teacher, self.model, self.memory = teacher, model, memory
        self.keys: dict[str, np.ndarray] = {}  # column -> keys that would be remembered
        self.columns: dict[str, Column] = {}
        self.shards: list[tuple[int, dict[str, Column]]] = []  # rows and columns of each
        self.parts: list[TokenisedSet] = []  # examples that are asked together
        self.wants: list[Wants] = []  # of each part

    def remember(self, source: TokenisedSet, wants: Wants) -> None:
        """Count the examples that the teacher would be asked. From now on they count as remembered."""
        if source.needs_live_teacher(wants) or wants == Wants() or not len(source.examples):
            return
        if not self.columns.keys() >= set(asking.columns(wants)):
            self.columns |= asking.row_columns(wants, class_count(self.model, source), width(self.model))
        for part in asking.blocks(source, asking.missing_examples(self.missing, source, wants)):
            per_sequence = positions_read(part)
            counts = {"place": int(per_sequence.sum()), "sequence": len(per_sequence)}
            for row, names in asking.shard_layout(wants, one_place_each=bool((per_sequence == 1).all())):
                if counts[row]:
                    self.shards.append((counts[row], {name: self.columns[name] for name in names}))
            keys = part.memory_keys(part.examples.index)
            for name in asking.columns(wants):
                self.keys[name] = np.union1d(self.keys.get(name, NO_KEYS), keys)
            self.parts.append(part)
            self.wants.append(wants)

    def missing(self, keys: np.ndarray, names: list[str]) -> np.ndarray:
        """As `Memory.missing`, without the keys that would be remembered by now."""
        missing = np.zeros(len(keys), np.bool_)
        for name in names:
            missing |= self.memory.missing(keys, [name]) & ~np.isin(keys, self.keys.get(name, NO_KEYS))
        return missing

    @property
    def new_bytes(self) -> int:
        return self.memory.size_with(self.shards) - self.memory.size_with([])

    def work(self, devices: int) -> Work:
        """The work of all queries, from a few batches that are timed."""
        if not self.parts:
            return Work()
        batches = reading_batches(self.parts, asking.TOKENS_AT_ONCE)
        few = batches.sample((0.0, 0.33, 0.67, 1.0), (0.5,))
        seconds = time_teacher(self.teacher, self.wants, self.parts, few).of(batches)
        work = reading_work(self.parts, forward(self.model, batches, Wants(logits=True)), seconds)
        return work.shared(devices, float(np.bincount(batches.data, weights=seconds).max()))


def positions_read(source: TokenisedSet) -> np.ndarray:
    """(sequences,) the number of positions at which the head is read, in the teacher's tokens."""
    counts = []
    for begin in range(0, len(source.examples), COUNTED_AT_ONCE):
        rows = source.examples.index[begin : begin + COUNTED_AT_ONCE]
        at, _ = source.task.places(source.teacher, rows)
        counts.append(np.bincount(at[:, 0], minlength=int(source.teacher.counts(rows).sum())))
    return np.concatenate(counts)


def class_count(model: PreTrainedModel, source: TokenisedSet) -> int:
    """The number of logits at a position, from one example that is asked."""
    batch = source.batch(np.array([0]), source.count(np.array([0])))
    with torch.inference_mode():
        return listen(
            model, replace(batch.teacher.to(model.device), layout=nothing()), Wants(logits=True)
        ).logits.shape[1]


class TeacherCosts:
    """What the teachers would be asked over all stages, grid cells and seeds of a plan. Each question counts once."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.taught: set[str] = set()  # names of the data sets with a teacher's model
        self.by_memory: dict[Path, TeacherQueries] = {}  # data sets with the same teacher share its memory
        self.text_keys: dict[Path, np.ndarray] = {}  # folder of texts -> keys of sources that would be there
        self.text_work = Work()

    def queries(self, data: DataSet) -> TeacherQueries | None:
        """The queries to the teacher of a data set; None without a teacher's model."""
        model, memory = data.teacher.model, data.teacher.memory
        if model is None or memory is None:
            return None
        self.taught.add(data.name)
        return self.by_memory.setdefault(memory.folder, TeacherQueries(data.teacher, model, memory))

    def remember_training(self, cost: StageCost, epochs: float) -> None:
        for data, source, wants in zip(cost.data_sets, cost.sources, cost.asks, strict=True):
            if queries := self.queries(data):
                for draw in source.draws(epochs):
                    queries.remember(draw, wants)

    def remember_logits(self, data: DataSet, examples: Examples, split: str) -> None:
        if (queries := self.queries(data)) and data.loaded_teacher:
            queries.remember(data.tokenised(examples, data.loaded_teacher.tokenizer, split), Wants(logits=True))

    def query_work(self) -> Work:
        work = sum((queries.work(self.devices) for queries in self.by_memory.values()), Work())
        return replace(work, runs=len(self.taught))

    def make(self, maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Examples:
        """Run a data maker if the teacher has written all its texts already; else return rows that stand in for them."""
        folder, keys, missing = maker.missing(examples, context)
        if not len(missing):
            return maker.make(examples, context)
        counted = self.text_keys.get(folder, NO_KEYS)
        new = missing[~np.isin(keys[missing], counted)]
        if len(new):
            self.text_keys[folder] = np.union1d(counted, keys[new])
            work = texts_work(maker, examples.take(new), context)
            self.text_work += work.shared(self.devices, work.seconds * min(1.0, maker.block / len(new)))
        return maker.stand_in(examples, context)


def texts_work(maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Work:
    """The work of decoding all rows. The operations of a black box are not known."""
    seconds = time_decoding(maker.decoder(context), examples, [(maker.beam, maker.beam)])
    work = Work(runs=1, rows=len(examples), seconds=seconds)
    if maker.black_box or context.teacher is None or context.task is None:
        return work
    tokens = tokenise(context.task, examples, context.teacher.tokenizer, context.longest)
    source = TokenisedSet(context.task, examples, tokens, tokens)
    operations = forward(context.teacher.model, reading_batches([source], AT_ONCE)).sum()
    return replace(work, tokens=int(token_counts(source).sum()), operations=maker.beam * float(operations))
