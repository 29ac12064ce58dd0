"""Examples in batches: which ones make a step, how a step is cut, how rows become tensors.

Randomness is a function, not a state: the order of an epoch follows from (seed, stage, epoch) alone, so that a resumed
run meets the same batches, whatever happened before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from potstill.data.examples import Examples
from potstill.data.making import Change
from potstill.data.task import DataTask
from potstill.data.tokens import Tokens, ranges
from potstill.signals import Batch, Over, View, Wants, nothing
from potstill.system.randomness import draw_uniform, mix, splitmix64

WINDOW = 64  # batches at most whose rows are sorted by length together: enough for little padding
WINDOWS = 4  # of an epoch at least: rows that are sorted together meet in the same batches, epoch after epoch


def epoch_order(lengths: np.ndarray, batch: int, *seed: int | str) -> list[np.ndarray]:
    """Positions of the examples of each step of one epoch: every example once, those of a step of about one length."""
    random = np.random.default_rng(mix(*seed))
    shuffled = random.permutation(len(lengths))
    steps: list[np.ndarray] = []
    size = batch * min(WINDOW, max(1, len(lengths) // (WINDOWS * batch)))
    for begin in range(0, len(shuffled), size):
        window = shuffled[begin : begin + size]
        window = window[np.argsort(lengths[window], kind="stable")]
        steps += [window[i : i + batch] for i in range(0, len(window), batch)]
    return [steps[i] for i in random.permutation(len(steps))]


def split_by_tokens(positions: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Micro-batches of at most `tokens` padded tokens (a longer text stands alone), longest first."""
    ordered = positions[np.argsort(-lengths[positions], kind="stable")]
    pieces, begin = [], 0
    while begin < len(ordered):
        size = max(1, tokens // max(int(lengths[ordered[begin]]), 1))
        pieces.append(ordered[begin : begin + size])
        begin += size
    return pieces


def window_keys(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Keys of all sequences of examples with these keys; the first sequence has the example's own."""
    parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return _part_keys(np.repeat(keys, counts), parts, 0x9E3779B97F4A7C15)


def place_keys(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Keys of places, given the row of each in order; the first place of a row has the row's own."""
    firsts = np.searchsorted(rows, rows)  # rows ascend: the first place of the same row
    return _part_keys(keys[rows], np.arange(len(rows)) - firsts, 0xC2B2AE3D27D4EB4F)


def _part_keys(keys: np.ndarray, parts: np.ndarray, salt: int) -> np.ndarray:
    """The key itself for part 0, else a mix of both."""
    mixed = splitmix64(keys.astype(np.uint64) + parts.astype(np.uint64) * np.uint64(salt))
    return np.where(parts == 0, keys, mixed.astype(np.int64))


def view(task: DataTask, tokens: Tokens, rows: np.ndarray) -> View:
    """Rows of an examples folder, their sequences padded to the longest of them."""
    sequences = tokens.sequences(rows)
    lengths = tokens.sizes(sequences)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    places = (tokens.offsets[sequences][:, None] + columns)[real]  # in the flat files
    ids = np.full(real.shape, tokens.padding, np.int64)
    segments = np.zeros(real.shape, np.int64)
    ids[real], segments[real] = tokens.ids[places], tokens.segments[places]
    made = {} if tokens.pixels is None else {"pixel_values": torch.from_numpy(tokens.pixels[sequences]).float() / 255}
    made |= {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(real.astype(np.int64)),
        "token_type_ids": torch.from_numpy(segments),
    }
    at, layout = task.places(tokens, rows)
    arranged = nothing() if layout is None else torch.from_numpy(layout)
    there = torch.from_numpy(real)
    return View(task.inputs(made, there, tokens), there, torch.from_numpy(at), arranged)


class TargetScale(NamedTuple):
    """Target values are learned as (y − mean) / sd."""

    mean: float
    sd: float


SomeTask = TypeVar("SomeTask", bound=DataTask, covariant=True)


@dataclass(frozen=True)
class TokenisedSet(Generic[SomeTask]):
    """One data set as the loop sees it: examples and both readings of them."""

    task: SomeTask
    examples: Examples
    student: Tokens
    teacher: Tokens  # the same object where the tokenizers agree
    answered: np.ndarray | None = (
        None  # (rows of the folder,) bool where a teacher's file lacks some answers; None = all
    )
    class_weights: Tensor | None = None
    target_scale: TargetScale | None = None  # of regression targets; None: as in the rows
    changes: tuple[Change, ...] = ()  # made in training, anew in every epoch
    seed: tuple[int, ...] = ()  # of the changes

    @property
    def lengths(self) -> np.ndarray:
        """(n,) padded tokens of each example in the student's reading."""
        return self.student.lengths(self.examples.index)

    def needs_live_teacher(self, wants: Wants) -> bool:
        """Whether the teacher's answers cannot be remembered: examples that change, states and vocabularies too wide."""
        return bool(self.changes) or wants.per_token or (wants.logits and not wants.top and self.task.generates)

    @cached_property
    def aligned_tokens(self) -> tuple[Tokens, Tokens]:
        """The student's and the teacher's, with the same predictions in both."""
        if self.teacher is self.student:
            return self.student, self.teacher
        return self.task.aligned(self.student, self.teacher)

    def batch(self, positions: np.ndarray, counts: dict[Over, int], epoch: int | None = None) -> Batch:
        """Positions count among the examples; `counts` are the whole step's. Of an epoch, the examples as they are in it."""
        rows = self.examples.index[positions]
        ours, theirs = self.aligned_tokens
        reading = view(self.task, ours, rows)
        predictions, sequences = self.task.predictions(ours, rows), ours.counts(rows)
        taught = np.ones(len(rows), np.bool_) if self.answered is None else np.asarray(self.answered[rows])
        made = Batch(
            keys=torch.from_numpy(window_keys(np.asarray(self.examples.keys[rows]), sequences)),
            student=reading,
            teacher=reading if theirs is ours else view(self.task, theirs, rows),
            targets=torch.from_numpy(self.scaled_targets(self.task.targets(self.examples, ours, rows))),
            labelled=torch.from_numpy(np.repeat(np.asarray(self.examples.labelled[rows]), predictions)),
            taught=torch.from_numpy(np.repeat(taught, sequences)),
            taught_predictions=torch.from_numpy(np.repeat(taught, predictions)),
            counts=counts,
            outcome=self.task.outcome,
            class_weights=nothing() if self.class_weights is None else self.class_weights,
            never=self.task.never(ours),
            vocabulary=self.task.generates,
        )
        if epoch is not None:
            for place, change in enumerate(self.changes):
                made = change(made, partial(draw_uniform, made.keys.numpy(), (*self.seed, epoch, place)))
        return made

    def scaled_targets(self, numbers: np.ndarray) -> np.ndarray:
        """Labels as they are learned."""
        if self.target_scale is None:
            return numbers
        return ((numbers.astype(np.float64) - self.target_scale.mean) / self.target_scale.sd).astype(numbers.dtype)

    def count(self, positions: np.ndarray) -> dict[Over, int]:
        rows = self.examples.index[positions]
        ours, _ = self.aligned_tokens
        predictions, sequences = self.task.predictions(ours, rows), ours.sequences(rows)
        return {
            "examples": len(sequences),
            "predictions": int(predictions.sum()),
            "tokens": int(ours.sizes(sequences).sum()),
        }

    def in_order(self, tokens: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Every example once, in batches of like length, with its positions: for asking and scoring, not for training."""
        for positions in self.positions_in_order(tokens):
            yield positions, self.batch(positions, self.count(positions))

    def positions_in_order(self, tokens: int) -> Iterator[np.ndarray]:
        """The positions alone."""
        lengths = self.lengths
        for begin in range(
            0, len(lengths), 4096
        ):  # a bounded stretch at a time, so that memory does not grow with rows
            yield from split_by_tokens(np.arange(begin, min(begin + 4096, len(lengths))), lengths, tokens)


def used_token_ids(sources: Sequence[TokenisedSet], vocabulary: int) -> np.ndarray:
    """(vocabulary,) bool: the ids that the student meets in these examples, padding among them."""
    found = np.zeros(vocabulary, np.bool_)
    for source in sources:
        found[source.student.padding] = True
        for begin in range(0, len(source.examples), 4096):
            sequences = source.student.sequences(source.examples.index[begin : begin + 4096])
            places = ranges(source.student.offsets[sequences], source.student.offsets[sequences + 1])
            found[source.student.ids[places]] = True
    return found


def all_lengths(sources: Sequence[TokenisedSet]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of all examples of all data sets; and where each one's begin."""
    lengths = np.concatenate([source.lengths for source in sources])
    return lengths, np.cumsum([0, *(len(source.examples) for source in sources[:-1])])


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step that goes through the model at once."""

    place: int  # among the step's parts: its dropout follows from it
    data: int  # number of the data set
    batch: Batch  # with the whole step's counts


def step_positions(
    step: np.ndarray, lengths: np.ndarray, starts: np.ndarray, tokens: int
) -> Iterator[tuple[int, np.ndarray]]:
    """How a step is cut: for each micro-batch the number of its data set, and positions among the examples of that.

    In `step`, positions of all data sets are counted through: those of data set d begin at starts[d].
    """
    for number, positions in enumerate(_by_data(step, starts)):
        for piece in split_by_tokens(positions, lengths, tokens):
            yield number, piece - starts[number]


def step_batches(
    sources: Sequence[TokenisedSet],
    step: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    tokens: int,
    rank: int = 0,
    ranks: int = 1,
    epoch: int = 0,
) -> list[MicroBatch]:
    """A rank's share of one optimiser step: every N-th of its micro-batches. How a step is cut does not depend on N."""
    counts = step_counts(sources, step, starts)
    return [
        MicroBatch(place, number, sources[number].batch(piece, counts, epoch))
        for place, (number, piece) in enumerate(step_positions(step, lengths, starts, tokens))
        if place % ranks == rank
    ]


def step_counts(sources: Sequence[TokenisedSet], step: np.ndarray, starts: np.ndarray) -> dict[Over, int]:
    """What a whole optimiser step holds, over all its data sets and ranks."""
    counts: dict[Over, int] = {"examples": 0, "predictions": 0, "tokens": 0}
    for number, positions in enumerate(_by_data(step, starts)):
        for name, value in sources[number].count(positions - starts[number]).items():
            counts[name] += value
    return counts


def _by_data(step: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    owner = np.searchsorted(starts, step, side="right") - 1
    return [step[owner == number] for number in range(len(starts))]
