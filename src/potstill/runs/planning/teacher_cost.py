"""What the teacher would be asked in a run, found without asking: rows for its memory, and texts for data makers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
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
from potstill.models.student import Student
from potstill.runs.data_set import DataSet
from potstill.runs.planning.batch_sizes import batch_sizes, reading_batches, token_count
from potstill.runs.planning.flops import forward
from potstill.runs.planning.stage_cost import StageCost, Work
from potstill.runs.planning.timing import batches_at, time_teacher
from potstill.signals import Wants, nothing
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import (
    TOKENS_AT_ONCE,
    blocks,
    columns,
    head_column,
    missing_examples,
    shard_layout,
)
from potstill.training.teacher.top_classes import packed_width

COUNTED_AT_ONCE = 4096  # rows
DECODED_TEXTS = 64  # that are decoded at most to estimate the time of all

ColumnShapes = dict[str, tuple[int, ...]]
"""The shape of one row of each column of a memory."""
BlockedWork = tuple[Work, float]
"""Work, and the seconds of its largest block, which devices cannot share."""


class DryMemory:
    """A teacher's memory as it would be after a run: the real one, and keys and shards without answers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.keys: dict[str, np.ndarray] = {}  # column -> keys that would be remembered
        self.shards: list[tuple[int, ColumnShapes]] = []  # keys and columns of each

    def missing(self, keys: np.ndarray, names: list[str]) -> np.ndarray:
        """As `Memory.missing`, without the keys that would be remembered by now."""
        missing = np.zeros(len(keys), np.bool_)
        for name in names:
            missing |= self.memory.missing(keys, [name]) & ~np.isin(keys, self.keys_of(name))
        return missing

    def keys_of(self, column: str) -> np.ndarray:
        return self.keys.get(column, np.empty(0, np.int64))

    def remember(self, source: TokenisedSet, wants: Wants, shapes: ColumnShapes) -> list[TokenisedSet]:
        """The examples that the teacher would be asked, shard by shard. From now on they count as remembered."""
        parts = blocks(source, missing_examples(self.missing, source, wants))
        for part in parts:
            per_sequence = positions_read(part)
            counts = {"place": int(per_sequence.sum()), "sequence": len(per_sequence)}
            for row, names in shard_layout(wants, one_place_each=bool((per_sequence == 1).all())):
                if counts[row]:
                    self.shards.append((counts[row], {name: shapes[name] for name in names}))
            keys = np.asarray(part.examples.keys[part.examples.index])
            for name in columns(wants):
                self.keys[name] = np.union1d(self.keys_of(name), keys)
        return parts

    @property
    def new_bytes(self) -> int:
        return self.memory.size_with(self.shards) - self.memory.size_with([])


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


@dataclass
class TeacherQueries:
    """All that the teacher of one data set would be asked over all runs."""

    data: DataSet
    loaded: Student
    memory: DryMemory
    parts: list[TokenisedSet] = field(default_factory=list)
    wants: list[Wants] = field(default_factory=list)  # of each part
    shapes: ColumnShapes = field(default_factory=dict)

    def remember(self, source: TokenisedSet, wants: Wants) -> None:
        if source.needs_live_teacher(wants) or wants == Wants():
            return
        if not self.shapes.keys() >= set(columns(wants)):
            self.shapes |= column_shapes(self.loaded.model, source, wants)
        parts = self.memory.remember(source, wants, self.shapes)
        self.parts += parts
        self.wants += [wants] * len(parts)

    def remember_logits(self, examples: Examples, split: str) -> None:
        if len(examples):
            self.remember(self.data.tokenised(examples, self.loaded.tokenizer, split), Wants(logits=True))

    def work(self) -> BlockedWork:
        """The work of all queries, from a few batches that are timed."""
        if not self.parts:
            return Work(), 0.0
        batches = reading_batches(self.parts, TOKENS_AT_ONCE)
        sizes = batch_sizes(batches, self.parts)
        which = batches_at(sizes, (0.0, 0.33, 0.67, 1.0), (0.5,))
        few = [batches[number] for number in which]
        seconds = time_teacher(self.data.teacher, self.wants, self.parts, few, sizes.take(which)).of(sizes)
        rows, tokens = sum(len(part.examples) for part in self.parts), sum(map(token_count, self.parts))
        operations = forward(self.loaded.model, sizes, Wants(logits=True))
        largest_block = float(np.bincount(sizes.data, weights=seconds).max())
        return Work(rows, tokens, float(operations.sum()), float(seconds.sum())), largest_block


class TeacherCosts:
    """What the teachers would be asked over all stages, grid cells and seeds of a plan. Each question counts once."""

    def __init__(self, data_sets: list[DataSet]) -> None:
        self.memories: dict[Path, DryMemory] = {}  # data sets with the same teacher share its memory
        self.queries: list[TeacherQueries | None] = []  # one per data set; None without a teacher's model
        for data in data_sets:
            loaded, memory = data.loaded_teacher, data.teacher.memory
            if loaded is None or memory is None:
                self.queries.append(None)
            else:
                dry = self.memories.setdefault(memory.folder, DryMemory(memory))
                self.queries.append(TeacherQueries(data, loaded, dry))
        self.text_keys: dict[Path, np.ndarray] = {}  # folder of texts -> keys of sources that would be there
        self.text_work: list[BlockedWork] = []

    @property
    def models(self) -> list[TeacherQueries]:
        return [queries for queries in self.queries if queries]

    @property
    def new_bytes(self) -> int:
        return sum(memory.new_bytes for memory in self.memories.values())

    def remember_training(self, costs: list[StageCost]) -> None:
        for cost in costs:
            for queries, source, wants in zip(self.queries, cost.sources, cost.asks, strict=True):
                if queries and not source.changes:
                    queries.remember(source, wants)

    def make(self, maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Examples:
        """Run a data maker if the teacher has written all its texts already; else return rows that stand in for them."""
        folder, keys, missing = maker.missing(examples, context)
        if not len(missing):
            return maker.make(examples, context)
        counted = self.text_keys.get(folder, np.empty(0, np.int64))
        new = missing[~np.isin(keys[missing], counted)]
        if len(new):
            self.text_keys[folder] = np.union1d(counted, keys[new])
            work = texts_work(maker, examples.take(new), context)
            self.text_work.append((work, work.seconds * min(1.0, maker.block / len(new))))
        return maker.stand_in(examples, context)


def texts_work(maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Work:
    """The work of decoding all rows, from a few that are decoded. The operations of a black box are not known."""
    few = examples.take(np.linspace(0, len(examples) - 1, min(DECODED_TEXTS, len(examples))).astype(np.int64))
    texts = [text for text, _ in few.texts()]
    start = time.perf_counter()
    with maker.decoder(context) as decode:
        loaded = time.perf_counter()
        decode(texts, maker.beam, maker.beam)
        done = time.perf_counter()
    seconds = loaded - start + (done - loaded) * len(examples) / len(few)
    if maker.black_box or context.teacher is None or context.task is None:
        return Work(rows=len(examples), seconds=seconds)
    tokens = tokenise(context.task, examples, context.teacher.tokenizer, context.longest)
    source = TokenisedSet(context.task, examples, tokens, tokens)
    sizes = batch_sizes(reading_batches([source], at_once(context.task)), [source])
    operations = maker.beam * float(forward(context.teacher.model, sizes).sum())
    return Work(len(examples), token_count(source), operations, seconds)
