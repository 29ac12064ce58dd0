"""What remembering would ask and write, found without asking: a memory that is imagined on top of the real one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.models.anatomy import width
from potstill.models.hooks import listen
from potstill.models.student import Student
from potstill.runs.data_set import DataSet
from potstill.runs.planning.batch_sizes import read_pieces, shapes_of
from potstill.runs.planning.flops import forward
from potstill.runs.planning.stage_cost import Work, tokens_of
from potstill.runs.planning.timing import chosen, time_asking
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

AT_ONCE = 4096  # rows whose places are counted together

ColumnShapes = dict[str, tuple[int, ...]]


class Imagined:
    """Keys and shards, but no answers."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.known: dict[str, np.ndarray] = {}  # column -> keys that were imagined to be remembered
        self.shards: list[tuple[int, ColumnShapes]] = []  # keys and columns of each

    def missing(self, keys: np.ndarray, names: list[str]) -> np.ndarray:
        """As `Memory.missing`, with what was imagined so far."""
        lacks = np.zeros(len(keys), np.bool_)
        for name in names:
            imagined = np.isin(keys, self.known.get(name, np.empty(0, np.int64)))
            lacks |= self.memory.missing(keys, [name]) & ~imagined
        return lacks

    def remember(self, source: TokenisedSet, wants: Wants, shapes: ColumnShapes) -> list[TokenisedSet]:
        """What the teacher would be asked, shard by shard; from here on it counts as known."""
        parts = blocks(source, missing_examples(self.missing, source, wants))
        for part in parts:
            per_sequence = places(part)
            counts = {"place": int(per_sequence.sum()), "sequence": len(per_sequence)}
            for row, names in shard_layout(wants, one_place_each=bool((per_sequence == 1).all())):
                if counts[row]:
                    self.shards.append((counts[row], {name: shapes[name] for name in names}))
            keys = np.asarray(part.examples.keys[part.examples.index])
            for name in columns(wants):
                self.known[name] = np.union1d(self.known.get(name, np.empty(0, np.int64)), keys)
        return parts

    @property
    def bytes(self) -> int:
        """Of the whole folder in the end."""
        return self.memory.size_with(self.shards)

    @property
    def new_bytes(self) -> int:
        return self.bytes - self.memory.size_with([])


def places(source: TokenisedSet) -> np.ndarray:
    """(sequences,) at how many places the head is read in each, in the teacher's reading."""
    found = []
    for begin in range(0, len(source.examples), AT_ONCE):
        rows = source.examples.index[begin : begin + AT_ONCE]
        at, _ = source.task.places(source.teacher, rows)
        found.append(np.bincount(at[:, 0], minlength=int(source.teacher.counts(rows).sum())))
    return np.concatenate(found)


def column_shapes(model: PreTrainedModel, source: TokenisedSet, wants: Wants) -> ColumnShapes:
    """The shape of a row of each column, from one example that is asked."""
    batch = source.batch(np.array([0]), source.count(np.array([0])))
    with torch.inference_mode():
        view = replace(batch.teacher.to(model.device), layout=nothing())
        classes = listen(model, view, Wants(logits=True)).logits.shape[1]
    head = packed_width(wants.top, classes) if wants.top else classes
    return {name: (head if name == head_column(wants) else width(model),) for name in columns(wants)}


@dataclass
class Asking:
    """All that the teacher of one data set will be asked over all runs."""

    data: DataSet
    taught_by: Student
    imagined: Imagined
    parts: list[TokenisedSet] = field(default_factory=list)
    wants: list[Wants] = field(default_factory=list)  # of each part
    shapes: ColumnShapes = field(default_factory=dict)

    def remember(self, source: TokenisedSet, wants: Wants) -> None:
        if source.needs_live_teacher(wants) or wants == Wants():
            return
        if not self.shapes.keys() >= set(columns(wants)):
            self.shapes |= column_shapes(self.taught_by.model, source, wants)
        parts = self.imagined.remember(source, wants, self.shapes)
        self.parts += parts
        self.wants += [wants] * len(parts)

    def remember_rows(self, examples: Examples, split: str) -> None:
        """Logits alone: for the check against chance, and for the table."""
        if len(examples):
            self.remember(self.data.tokenised(examples, self.taught_by.tokenizer, split), Wants(logits=True))

    def work(self) -> tuple[Work, float]:
        """Seconds of this machine, from a few batches that are asked; and those of the largest block, which is not shared out."""
        if not self.parts:
            return Work(), 0.0
        pieces = read_pieces(self.parts, TOKENS_AT_ONCE)
        shapes = shapes_of(pieces, self.parts)
        which = chosen(shapes, (0.0, 0.33, 0.67, 1.0), (0.5,))
        few = [pieces[one] for one in which]
        seconds = time_asking(self.data.teacher, self.wants, self.parts, few, shapes.take(which)).of(shapes)
        rows, tokens = sum(len(part.examples) for part in self.parts), sum(map(tokens_of, self.parts))
        operations = forward(self.taught_by.model, shapes, Wants(logits=True))
        block = float(np.bincount(shapes.owners, weights=seconds).max())
        return Work(rows, tokens, float(operations.sum()), float(seconds.sum())), block


def askings(data: list[DataSet]) -> list[Asking | None]:
    """None for data sets without a teacher's model; those of one teacher share its memory."""
    memories: dict[Path, Imagined] = {}
    found: list[Asking | None] = []
    for one in data:
        if one.loaded_teacher is None or one.teacher.memory is None:
            found.append(None)
        else:
            folder = one.teacher.memory.folder
            found.append(Asking(one, one.loaded_teacher, memories.setdefault(folder, Imagined(one.teacher.memory))))
    return found
