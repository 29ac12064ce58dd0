"""What each stage of one run costs, from a few of its batches that are timed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order
from potstill.inference.answers import at_once
from potstill.models.anatomy import encoder_layers, width, word_embeddings
from potstill.models.student import Student
from potstill.recipe.schema import Recipe
from potstill.runs.build import build, reshape
from potstill.runs.data_set import DataSet
from potstill.runs.dev_scores import scored_splits
from potstill.runs.make_examples import MakeWithTeacher, run_maker
from potstill.runs.planning.batch_sizes import Piece, Shapes, epoch_pieces, read_pieces, shapes_of
from potstill.runs.planning.flops import forward, training_step
from potstill.runs.planning.timing import Law, TrainingCost, chosen, time_scoring, time_training, time_writing
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
    """Batches for asking or scoring, which hang on no other."""

    rows: int = 0
    tokens: int = 0  # without padding
    operations: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.operations + other.operations,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class StageCost:
    sources: list[TokenisedSet]
    asks: list[Wants]  # of the teacher of each data set, before training
    shapes: Shapes  # micro-batches of the first epoch; those of the others are alike
    seconds: np.ndarray  # (batches,)
    operations: np.ndarray  # (batches,)
    timed: TrainingCost
    scoring: Work  # at the end of every epoch
    testing: Work  # dev and tests, when all is done
    heads: int  # networks that are saved: one for each data set, or one for all
    weights: int  # bytes
    gradients: int
    moments: int  # in the device's memory
    saved_moments: int  # on disk, where those of unused word vectors are written too
    activations: (
        int  # of the largest micro-batch and, since they seldom fit into each other's place, of the largest scoring
    )

    @property
    def rows(self) -> int:
        return sum(len(source.examples) for source in self.sources)

    @property
    def tokens(self) -> int:
        return sum(map(tokens_of, self.sources))

    def rows_and_tokens(self, recipe: Recipe, seed: int, number: int, epoch: int, steps: int) -> tuple[int, int]:
        """Rows and tokens of an epoch's first steps, which hang on its order."""
        lengths, _ = all_lengths(self.sources)
        order = epoch_order(lengths, recipe.stage[number].batch, seed, number, epoch, "order")
        met = np.concatenate(order[:steps])
        sizes = np.concatenate([sizes_of(source) for source in self.sources])
        return len(met), int(sizes[met].sum())


def sizes_of(source: TokenisedSet) -> np.ndarray:
    """(n,) tokens of each example in the student's reading, without padding."""
    rows = source.examples.index
    sizes = source.student.sizes(source.student.sequences(rows))
    counts = source.student.counts(rows)
    return np.add.reduceat(sizes, np.cumsum(counts) - counts) if len(rows) else sizes


def tokens_of(source: TokenisedSet) -> int:
    return int(sizes_of(source).sum())


def costs_of(run: Run, make: MakeWithTeacher = run_maker) -> list[StageCost]:
    """Stage by stage, with the student as each one finds it. The run's folder is for what the teacher says of the timed rows,
    `make` for rows that it would write."""
    student = build(run.recipe, run.data_sets)
    costs = []
    for number, stage in enumerate(run.recipe.stage):
        student = reshape(stage, run.recipe, student, run.data_sets)
        training = make_training(StageInputs(run, number, student), make)
        folder = run.folder / str(number)
        costs.append(_cost(training, teacher_wants(training), run.data_sets, student.tokenizer, folder))
    return costs


def _cost(
    training: Training, asks: list[Wants], data: list[DataSet], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> StageCost:
    pieces = epoch_pieces(training)
    shapes = shapes_of(pieces, training.sources)
    which = chosen(shapes, (0.0, 0.33, 0.67, 1.0), (0.0, 0.5, 1.0))
    few = [pieces[one] for one in which]
    ready = replace(training, teachers=taught(training, asks, few, folder))
    timed = time_training(ready, few, shapes.take(which), turns=3, count=True)
    laws = [
        scoring_law(model, one.for_scoring(one.dev, tokenizer))
        for model, one in zip(training.models, data, strict=True)
    ]
    scoring = testing = Work()
    watched = scored_splits(data, training.sources, tokenizer)
    for number, (one, model, law) in enumerate(zip(data, training.models, laws, strict=True)):
        for seen in watched.values():
            scoring += read_work(model, law, seen[number])
            scoring += written_work(Student(model, tokenizer), seen[number], (1,))
        for rows in (one.dev, *one.tests.values()):
            testing += read_work(model, law, one.for_scoring(rows, tokenizer))
            testing += written_work(Student(model, tokenizer), one.for_scoring(rows, tokenizer), (1, BEAM))
    parameters = {id(one): one for model in training.models for one in model.parameters()}
    weights = FLOAT * sum(one.numel() for one in parameters.values())
    moments = MOMENTS[training.stage.optimizer.name]
    unused = word_embeddings(training.models[0]).weight.numel() - timed.spare if timed.spare else 0
    assert timed.kept is not None
    tasks = [one.task for one in data]
    return StageCost(
        training.sources,
        asks,
        shapes,
        timed.batch.of(shapes),
        training_step(training, shapes),
        timed,
        scoring,
        testing,
        len({id(model) for model in training.models}),
        weights,
        FLOAT * timed.trained,
        FLOAT * moments * timed.trained,
        FLOAT * moments * (timed.trained + unused),
        int(timed.kept.of(shapes).max()) + max(map(scoring_bytes, training.models, tasks)),
    )


def taught(training: Training, asks: list[Wants], pieces: list[Piece], folder: Path) -> list[Teacher]:
    """Teachers that remember the rows of these pieces, in a folder of their own: a plan leaves the real memory as it is."""
    found = []
    for number, (teacher, source, wants) in enumerate(zip(training.teachers, training.sources, asks, strict=True)):
        if teacher.model is not None and not source.needs_live_teacher(wants):
            teacher = Teacher(teacher.model, Memory(folder / str(number)), teacher.device)
            mine = [positions for _, owner, positions in pieces if owner == number]
            if mine:
                teacher.remember(replace(source, examples=source.examples.take(np.concatenate(mine))), wants)
        found.append(teacher)
    return found


def scoring_law(model: PreTrainedModel, source: TokenisedSet) -> Law:
    pieces = read_pieces([source], at_once(source.task))
    shapes = shapes_of(pieces, [source])
    which = chosen(shapes, (0.0, 0.5, 1.0))
    return time_scoring(model, source, [pieces[one] for one in which], shapes.take(which))


def scoring_bytes(model: PreTrainedModel, task: Task) -> int:
    """What lies in memory at once in the widest part of a layer: its input and output, and what is around it.

    Of models that write, the logits are wider: as they come, at the places that are read, shifted, and as exponentials.
    """
    part = next(iter(encoder_layers(model)), model)
    outputs = [module.out_features for module in part.modules() if isinstance(module, nn.Linear)]
    widest = max(*outputs, *(8 * module.hidden_size for module in part.modules() if isinstance(module, nn.LSTM)), 0)
    logits = 4 * word_embeddings(model).num_embeddings if task.generates else 0
    return FLOAT * at_once(task) * max(2 * widest + 3 * width(model), logits)


def read_work(model: PreTrainedModel, law: Law, source: TokenisedSet) -> Work:
    shapes = shapes_of(read_pieces([source], at_once(source.task)), [source])
    operations = float(forward(model, shapes).sum())
    return Work(len(source.examples), tokens_of(source), operations, float(law.of(shapes).sum()))


def teachers_work(data: DataSet) -> Work:
    """Of a teacher that writes, which is asked anew for the table; what others said is remembered."""
    if data.loaded_teacher is None or not data.task.generates:
        return Work()
    found, law = (
        Work(),
        scoring_law(data.loaded_teacher.model, data.for_scoring(data.dev, data.loaded_teacher.tokenizer)),
    )
    for rows in (data.dev, *data.tests.values()):
        source = data.for_scoring(rows, data.loaded_teacher.tokenizer)
        found += read_work(data.loaded_teacher.model, law, source) + written_work(
            data.loaded_teacher, source, (1, BEAM)
        )
    return found


def written_work(student: Student, source: TokenisedSet, beams: Sequence[int]) -> Work:
    """What is written by searches of these widths, where the task is scored by it; as many tokens as the gold texts have."""
    if not source.task.decodes or not len(source.examples):
        return Work()
    shapes = shapes_of(read_pieces([source], at_once(source.task)), [source])
    operations = sum(beams) * float(forward(student.model, shapes).sum())  # the encoder reads but once, and is no more
    return Work(operations=operations, seconds=time_writing(student, source, beams))
