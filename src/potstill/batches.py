"""Examples in batches: which ones make a step, how a step is cut, how rows become tensors.

Randomness is a function, not a state: the order of an epoch follows from (seed, stage, epoch) alone, so that a resumed
run meets the same batches, whatever happened before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from torch import Tensor

from potstill.examples import Examples, Tokens
from potstill.signals import Batch, Over, View, nothing
from potstill.tasks import Task

WINDOW = (
    64  # batches whose rows are sorted by length together: long enough for little padding, short enough to stay mixed
)


def mix(*parts: int | str) -> int:
    """A seed for one thing out of the names of that thing."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode()) >> 1  # torch takes 63 bits


def epoch_order(lengths: np.ndarray, batch: int, *seed: int | str) -> list[np.ndarray]:
    """Positions of the examples of each step of one epoch: every example once, those of a step of about one length."""
    random = np.random.default_rng(mix(*seed))
    shuffled = random.permutation(len(lengths))
    steps: list[np.ndarray] = []
    for begin in range(0, len(shuffled), WINDOW * batch):
        window = shuffled[begin : begin + WINDOW * batch]
        window = window[np.argsort(lengths[window], kind="stable")]
        steps += [window[i : i + batch] for i in range(0, len(window), batch)]
    return [steps[i] for i in random.permutation(len(steps))]


def cut(positions: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Micro-batches of at most `tokens` padded tokens (a longer text stands alone), longest first."""
    ordered = positions[np.argsort(-lengths[positions], kind="stable")]
    pieces, begin = [], 0
    while begin < len(ordered):
        size = max(1, tokens // max(int(lengths[ordered[begin]]), 1))
        pieces.append(ordered[begin : begin + size])
        begin += size
    return pieces


def view(tokens: Tokens, rows: np.ndarray) -> View:
    """Rows of an examples folder, padded to the longest of them."""
    lengths = tokens.lengths(rows)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    places = (tokens.offsets[rows][:, None] + columns)[real]  # in the flat files
    ids = np.full(real.shape, tokens.padding, np.int64)
    segments = np.zeros(real.shape, np.int64)
    ids[real], segments[real] = tokens.ids[places], tokens.segments[places]
    made = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(real.astype(np.int64)),
        "token_type_ids": torch.from_numpy(segments),
    }
    at = torch.stack([torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.long)], 1)
    return View({name: made[name] for name in tokens.names}, torch.from_numpy(real), at)


@dataclass(frozen=True)
class Source:
    """One data set as the loop sees it: examples and both readings of them."""

    task: Task
    examples: Examples
    student: Tokens
    teacher: Tokens  # the same object where the tokenizers agree
    answered: np.ndarray | None = (
        None  # (rows of the folder,) bool where a teacher's file lacks some answers; None = all
    )
    class_weights: Tensor | None = None

    @property
    def lengths(self) -> np.ndarray:
        """(n,) tokens of each example in the student's reading."""
        return self.student.lengths(self.examples.index)

    def batch(self, positions: np.ndarray, counts: dict[Over, int]) -> Batch:
        """Positions count among the examples; `counts` are the whole step's."""
        rows = self.examples.index[positions]
        reading = view(self.student, rows)
        targets = torch.from_numpy(self.examples.targets[rows])
        return Batch(
            keys=torch.from_numpy(self.examples.keys[rows]),
            student=reading,
            teacher=reading if self.teacher is self.student else view(self.teacher, rows),
            targets=targets,
            labelled=torch.from_numpy(self.examples.labelled[rows]),
            taught=torch.ones(len(rows), dtype=torch.bool)
            if self.answered is None
            else torch.from_numpy(self.answered[rows]),
            counts=counts,
            outcome=self.task.outcome,
            class_weights=nothing() if self.class_weights is None else self.class_weights,
        )

    def count(self, positions: np.ndarray) -> dict[Over, int]:
        rows = self.examples.index[positions]
        labelled = int(self.examples.labelled[rows].sum())
        return {
            "examples": len(rows),
            "predictions": len(rows),
            "labelled": labelled,
            "tokens": int(self.student.lengths(rows).sum()),
        }

    def in_order(self, tokens: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Every example once, in batches of like length, with its positions: for asking and scoring, not for training."""
        lengths = self.lengths
        for begin in range(
            0, len(lengths), 4096
        ):  # a bounded stretch at a time, so that memory does not grow with rows
            stretch = np.arange(begin, min(begin + 4096, len(lengths)))
            for positions in cut(stretch, lengths, tokens):
                yield positions, self.batch(positions, self.count(positions))


def occurring(sources: Sequence[Source], vocabulary: int) -> np.ndarray:
    """(vocabulary,) bool: the ids that the student meets in these examples, padding among them."""
    found = np.zeros(vocabulary, np.bool_)
    for source in sources:
        found[source.student.padding] = True
        for begin in range(0, len(source.examples), 4096):
            found[view(source.student, source.examples.index[begin : begin + 4096]).inputs["input_ids"].numpy()] = True
    return found


def step_batches(
    sources: Sequence[Source], step: np.ndarray, lengths: np.ndarray, starts: np.ndarray, tokens: int
) -> list[tuple[int, Batch]]:
    """The micro-batches of one optimiser step, each of one data set (its number comes first), with the whole step's counts.

    Positions of all data sets are counted through: those of data set d begin at starts[d].
    """
    owner = np.searchsorted(starts, step, side="right") - 1
    mine = [step[owner == number] for number in range(len(sources))]
    counts: dict[Over, int] = {"examples": 0, "predictions": 0, "labelled": 0, "tokens": 0}
    for number, source in enumerate(sources):
        for name, value in source.count(mine[number] - starts[number]).items():
            counts[name] += value
    return [
        (number, source.batch(piece - starts[number], counts))
        for number, source in enumerate(sources)
        for piece in cut(mine[number], lengths, tokens)
    ]
