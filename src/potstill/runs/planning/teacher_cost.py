"""What the teacher would be asked in a run, found without asking: rows for its memory, and texts for data makers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.making import MakeContext, TeacherDataMaker
from potstill.data.tokens import tokenise
from potstill.inference.answers import at_once
from potstill.models.anatomy import width
from potstill.models.hooks import listen
from potstill.runs.data_set import DataSet
from potstill.runs.planning.batches import reading_batches, token_counts
from potstill.runs.planning.flops import forward
from potstill.runs.planning.stage_cost import StageCost, Work
from potstill.runs.planning.timing import time_decoding, time_teacher
from potstill.signals import Wants, nothing
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import (
    TOKENS_AT_ONCE,
    Teacher,
    blocks,
    columns,
    head_column,
    missing_examples,
    shard_layout,
)
from potstill.training.teacher.top_classes import packed_width

COUNTED_AT_ONCE = 4096  # rows
NO_KEYS = np.empty(0, np.int64)

ColumnShapes = dict[str, tuple[int, ...]]
"""The shape of one row of each column of a memory."""


class TeacherQueries:
    """All that one teacher would be asked over all runs, and its memory as it would be then, without the answers."""

    def __init__(self, teacher: Teacher, model: PreTrainedModel, memory: Memory) -> None:
        self.teacher, self.model, self.memory = teacher, model, memory
        self.keys: dict[str, np.ndarray] = {}  # column -> keys that would be remembered
        self.shapes: ColumnShapes = {}
        self.shards: list[tuple[int, ColumnShapes]] = []  # rows and columns of each
        self.parts: list[TokenisedSet] = []  # examples that are asked together
        self.wants: list[Wants] = []  # of each part

    def remember(self, source: TokenisedSet, wants: Wants) -> None:
        """Count the examples that the teacher would be asked. From now on they count as remembered."""
        if source.needs_live_teacher(wants) or wants == Wants() or not len(source.examples):
            return
        if not self.shapes.keys() >= set(columns(wants)):
            self.shapes |= column_shapes(self.model, source, wants)
        for part in blocks(source, missing_examples(self.missing, source, wants)):
            per_sequence = positions_read(part)
            counts = {"place": int(per_sequence.sum()), "sequence": len(per_sequence)}
            for row, names in shard_layout(wants, one_place_each=bool((per_sequence == 1).all())):
                if counts[row]:
                    self.shards.append((counts[row], {name: self.shapes[name] for name in names}))
            keys = np.asarray(part.examples.keys[part.examples.index])
            for name in columns(wants):
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
        batches = reading_batches(self.parts, TOKENS_AT_ONCE)
        few = batches.sample((0.0, 0.33, 0.67, 1.0), (0.5,))
        seconds = time_teacher(self.teacher, self.wants, self.parts, few).of(batches)
        work = Work(
            rows=sum(len(part.examples) for part in self.parts),
            tokens=sum(int(token_counts(part).sum()) for part in self.parts),
            operations=float(forward(self.model, batches, Wants(logits=True)).sum()),
            seconds=float(seconds.sum()),
        )
        return work.shared(devices, float(np.bincount(batches.data, weights=seconds).max()))


def positions_read(source: TokenisedSet) -> np.ndarray:
    """(sequences,) the number of positions at which the head is read, in the teacher's tokens."""
    counts = []
    for begin in range(0, len(source.examples), COUNTED_AT_ONCE):
        rows = source.examples.index[begin : begin + COUNTED_AT_ONCE]
        at, _ = source.task.places(source.teacher, rows)
        counts.append(np.bincount(at[:, 0], minlength=int(source.teacher.counts(rows).sum())))
    return np.concatenate(counts)


def column_shapes(model: PreTrainedModel, source: TokenisedSet, wants: Wants) -> ColumnShapes:
    """The shape of a row of each column, from one example that is asked."""
    batch = source.batch(np.array([0]), source.count(np.array([0])))
    with torch.inference_mode():
        view = replace(batch.teacher.to(model.device), layout=nothing())
        classes = listen(model, view, Wants(logits=True)).logits.shape[1]
    head = packed_width(wants.top, classes) if wants.top else classes
    return {name: (head if name == head_column(wants) else width(model),) for name in columns(wants)}


class TeacherCosts:
    """What the teachers would be asked over all stages, grid cells and seeds of a plan. Each question counts once."""

    def __init__(self, data_sets: list[DataSet], devices: int) -> None:
        self.data_sets, self.devices = data_sets, devices
        self.by_memory: dict[Path, TeacherQueries] = {}  # data sets with the same teacher share its memory
        self.text_keys: dict[Path, np.ndarray] = {}  # folder of texts -> keys of sources that would be there
        self.text_work = Work()

    def queries(self, data: DataSet) -> TeacherQueries | None:
        """The queries to the teacher of a data set; None without a teacher's model."""
        loaded, memory = data.loaded_teacher, data.teacher.memory
        if loaded is None or memory is None:
            return None
        return self.by_memory.setdefault(memory.folder, TeacherQueries(data.teacher, loaded.model, memory))

    def remember_training(self, cost: StageCost) -> None:
        for data, source, wants in zip(self.data_sets, cost.sources, cost.asks, strict=True):
            if (queries := self.queries(data)) and not source.changes:
                queries.remember(source, wants)

    def remember_logits(self, data: DataSet, examples: Examples, split: str) -> None:
        if (queries := self.queries(data)) and data.loaded_teacher:
            queries.remember(data.tokenised(examples, data.loaded_teacher.tokenizer, split), Wants(logits=True))

    def query_work(self) -> Work:
        work = sum((queries.work(self.devices) for queries in self.by_memory.values()), Work())
        return replace(work, runs=sum(self.queries(data) is not None for data in self.data_sets))

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
    operations = forward(context.teacher.model, reading_batches([source], at_once(context.task))).sum()
    return replace(work, tokens=int(token_counts(source).sum()), operations=maker.beam * float(operations))
