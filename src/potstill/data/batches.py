"""Examples in batches: which examples make a step, how a step is split into micro-batches, how rows become tensors.

The order of an epoch depends only on seed, stage and epoch, so that a resumed run sees the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from potstill.data.examples import Examples
from potstill.data.making import Change
from potstill.data.task import DataTask
from potstill.data.tokens import Tokens, array_view, ranges, split_by_tokens
from potstill.signals import Batch, Over, View, Wants, group_weights, nothing
from potstill.system.randomness import draw_uniform, mix, splitmix64

WINDOW = 64  # most batches whose rows are sorted by length together: enough for little padding
WINDOWS = 4  # fewest windows of an epoch: rows of one window often meet in the same batches
BACK = 0x6261636B  # in the seeds of draws that come back
ROWS_AT_ONCE = 4096  # examples whose batches are planned together, so that memory does not grow with the rows


def epoch_order(lengths: np.ndarray, batch: int, *seed: int | str) -> list[np.ndarray]:
    """Return the positions of the examples of each step of an epoch. Examples of similar length share a step."""
    random = np.random.default_rng(mix(*seed))
    shuffled = random.permutation(len(lengths))
    steps: list[np.ndarray] = []
    size = batch * min(WINDOW, max(1, len(lengths) // (WINDOWS * batch)))
    for begin in range(0, len(shuffled), size):
        window = shuffled[begin : begin + size]
        window = window[np.argsort(lengths[window], kind="stable")]
        steps += [window[i : i + batch] for i in range(0, len(window), batch)]
    return [steps[i] for i in random.permutation(len(steps))]


def window_keys(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the keys of all sequences of examples with these keys; the first sequence has the key of its example."""
    parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return _part_keys(np.repeat(keys, counts), parts, 0x9E3779B97F4A7C15)


def place_keys(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the keys of places from the ascending row of each; the first place of a row has the key of its row."""
    firsts = np.searchsorted(rows, rows)  # the first place of the same row
    return _part_keys(keys[rows], np.arange(len(rows)) - firsts, 0xC2B2AE3D27D4EB4F)


def _part_keys(keys: np.ndarray, parts: np.ndarray, salt: int) -> np.ndarray:
    """Return the key itself for part 0, otherwise a hash of key and part."""
    mixed = splitmix64(keys.astype(np.uint64) + parts.astype(np.uint64) * np.uint64(salt))
    return np.where(parts == 0, keys, mixed.astype(np.int64))


def view(task: DataTask, tokens: Tokens, rows: np.ndarray) -> View:
    """Return rows of an examples folder as tensors, padded to the longest sequence."""
    arrays = array_view(task, tokens, rows)
    inputs = {name: torch.from_numpy(array) for name, array in arrays.inputs.items()}
    layout = nothing() if arrays.layout is None else torch.from_numpy(arrays.layout)
    second = nothing() if arrays.also_at is None else torch.from_numpy(arrays.also_at)
    return View(inputs, torch.from_numpy(arrays.real), torch.from_numpy(arrays.at), layout, second)


def weights_of(view: View, counts: dict[Over, int]) -> Tensor:
    """Of the predictions of two heads, each averaged over its own; the second makes one for each example. Empty for one head."""
    if not view.also_at.numel():
        return nothing()
    of_step = counts["predictions"] - counts["examples"], counts["examples"]
    return group_weights((len(view.at), len(view.also_at)), of_step)


class TargetScale(NamedTuple):
    """Target values are learned as (y − mean) / sd."""

    mean: float
    sd: float


SomeTask = TypeVar("SomeTask", bound=DataTask, covariant=True)


@dataclass(frozen=True)
class TokenisedSet(Generic[SomeTask]):
    """One data set as the training loop sees it: examples, tokenised for the student and for the teacher."""

    task: SomeTask
    examples: Examples
    student: Tokens
    teacher: Tokens  # the same object if the tokenizers agree
    answered: np.ndarray | None = None  # (rows of the folder,) bool: the teacher's file has an answer; None: all have
    class_weights: Tensor | None = None
    target_scale: TargetScale | None = None  # of regression targets; None: as in the rows
    changes: tuple[Change, ...] = ()  # of data makers that change the examples in every epoch
    seed: tuple[int, ...] = ()  # of the changes, and of what the task draws
    # of what is drawn and comes back, outside of training: the one that the teacher is asked about
    draw: int | None = None

    @property
    def lengths(self) -> np.ndarray:
        """(n,) padded tokens of each example for the student."""
        return self.student.lengths(self.examples.index)

    @property
    def changing(self) -> bool:
        """True if the examples are others in every epoch."""
        return bool(self.changes) or (self.task.draws and self.task.masks is None)

    def draws(self, epochs: float) -> list[TokenisedSet[SomeTask]]:
        """The data set as it is in each of these epochs, if what is drawn comes back; otherwise once."""
        if not self.task.draws or self.task.masks is None:
            return [self]
        return [replace(self, draw=number) for number in range(min(self.task.masks, math.ceil(epochs)))]

    def memory_keys(self, rows: np.ndarray, epoch: int | None = None) -> np.ndarray:
        """(n,) keys of rows of the folder in the teacher's memory: what comes back has one for each draw."""
        keys, epoch = np.asarray(self.examples.keys[rows]), self.draw if epoch is None else epoch
        if epoch is None or not self.task.draws or self.task.masks is None:
            return keys
        return splitmix64(keys.astype(np.uint64) ^ np.uint64(mix(*self._drawn_by(epoch), repr(self.task)))).astype(
            np.int64
        )

    def needs_live_teacher(self, wants: Wants) -> bool:
        """Tell whether the teacher's answers cannot be stored: the examples change, or states or vocabularies are too large."""
        return self.changing or wants.per_token or (wants.logits and not wants.few and self.task.vocabulary)

    @cached_property
    def aligned_tokens(self) -> tuple[Tokens, Tokens]:
        """The tokens of student and teacher, with the same predictions in both."""
        if self.teacher is self.student:
            return self.student, self.teacher
        return self.task.align(self.student, self.teacher)

    def batch(self, positions: np.ndarray, counts: dict[Over, int], epoch: int | None = None) -> Batch:
        """Return the examples at these positions, with `epoch` as they are then. `counts` are those of the whole step."""
        rows, epoch = self.examples.index[positions], self.draw if epoch is None else epoch
        tokens, others = self.aligned_tokens if epoch is None else self._drawn_tokens(epoch)
        ours, places = self.task.redrawn(tokens, rows)
        student = view(self.task, ours, places)
        predictions, sequences = self.task.predictions(ours, places), ours.counts(places)
        taught = np.ones(len(rows), np.bool_) if self.answered is None else np.asarray(self.answered[rows])
        batch = Batch(
            keys=torch.from_numpy(window_keys(self.memory_keys(rows, epoch), sequences)),
            student=student,
            teacher=student if others is tokens else view(self.task, *self.task.redrawn(others, rows)),
            targets=torch.from_numpy(self.scaled_targets(self.task.targets(self.examples, ours, places))),
            labelled=torch.from_numpy(np.repeat(np.asarray(self.examples.labelled[rows]), predictions)),
            taught=torch.from_numpy(np.repeat(taught, sequences)),
            taught_predictions=torch.from_numpy(np.repeat(taught, predictions)),
            counts=counts,
            outcome=self.task.outcome,
            class_weights=nothing() if self.class_weights is None else self.class_weights,
            weights=weights_of(student, counts),
            never=self.task.impossible_classes(ours),
            vocabulary=self.task.vocabulary,
        )
        if epoch is not None:
            for number, change in enumerate(self.changes):
                batch = change(batch, partial(draw_uniform, batch.keys.numpy(), (*self.seed, epoch, number)))
        return batch

    def _drawn_tokens(self, epoch: int) -> tuple[Tokens, Tokens]:
        """Return the tokens of student and teacher, from which the task draws the same in this epoch."""
        ours, theirs = self.aligned_tokens
        if not self.task.draws:
            return ours, theirs
        drawn = replace(ours, seed=self._drawn_by(epoch))
        return drawn, drawn if theirs is ours else replace(theirs, seed=drawn.seed)

    def _drawn_by(self, epoch: int) -> tuple[int, ...]:
        """The seed of what is drawn in an epoch. What comes back is the same for every run, so that the teacher is asked once."""
        return (*self.seed, epoch) if self.task.masks is None else (BACK, epoch % self.task.masks)

    def scaled_targets(self, numbers: np.ndarray) -> np.ndarray:
        """Return targets in the unit in which they are learned."""
        if self.target_scale is None:
            return numbers
        return ((numbers.astype(np.float64) - self.target_scale.mean) / self.target_scale.sd).astype(numbers.dtype)

    def count(self, positions: np.ndarray, epoch: int | None = None) -> dict[Over, int]:
        epoch = self.draw if epoch is None else epoch
        tokens, _ = self.aligned_tokens if epoch is None else self._drawn_tokens(epoch)
        ours, rows = self.task.redrawn(tokens, self.examples.index[positions])
        predictions, sequences = self.task.predictions(ours, rows), ours.sequences(rows)
        return {
            "examples": len(sequences),
            "predictions": int(predictions.sum()),
            "tokens": int(ours.sizes(sequences).sum()),
        }

    def in_order(self, tokens: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yield every example once with its position, in batches of similar length: for inference, not for training."""
        for positions in self.positions_in_order(tokens):
            yield positions, self.batch(positions, self.count(positions))

    def positions_in_order(self, tokens: int) -> Iterator[np.ndarray]:
        """Yield the positions of these batches."""
        lengths = self.lengths
        for begin in range(0, len(lengths), ROWS_AT_ONCE):
            yield from split_by_tokens(np.arange(begin, min(begin + ROWS_AT_ONCE, len(lengths))), lengths, tokens)


def used_token_ids(sources: Sequence[TokenisedSet], vocabulary: int) -> np.ndarray:
    """Return (vocabulary,) bool: the token ids of the student in these examples, with padding."""
    used = np.zeros(vocabulary, np.bool_)
    for source in sources:
        used[source.student.padding] = True
        if source.task.draws:  # any token may take the place of another
            used[:] = True
        for begin in range(0, len(source.examples), ROWS_AT_ONCE):
            sequences = source.student.sequences(source.examples.index[begin : begin + ROWS_AT_ONCE])
            places = ranges(source.student.offsets[sequences], source.student.offsets[sequences + 1])
            used[source.student.ids[places]] = True
    return used


def all_lengths(sources: Sequence[TokenisedSet]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the examples of all data sets, one after the other, and where each data set begins."""
    lengths = np.concatenate([source.lengths for source in sources])
    return lengths, np.cumsum([0, *(len(source.examples) for source in sources[:-1])])


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step that goes through the model in one forward pass."""

    place: int  # among the micro-batches of the step: decides its dropout
    data: int  # number of the data set
    batch: Batch  # with the whole step's counts


def step_positions(
    step: np.ndarray, lengths: np.ndarray, starts: np.ndarray, tokens: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each micro-batch of a step the number of its data set, and positions among its examples.

    `step` has positions over all data sets: those of data set d begin at starts[d].
    """
    for number, positions in enumerate(_by_data_set(step, starts)):
        for part in split_by_tokens(positions, lengths, tokens):
            yield number, part - starts[number]


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
    """Return a rank's share of an optimiser step: every N-th micro-batch. The micro-batches do not depend on N."""
    counts = step_counts(sources, step, starts, epoch)
    return [
        MicroBatch(place, number, sources[number].batch(positions, counts, epoch))
        for place, (number, positions) in enumerate(step_positions(step, lengths, starts, tokens))
        if place % ranks == rank
    ]


def step_counts(
    sources: Sequence[TokenisedSet], step: np.ndarray, starts: np.ndarray, epoch: int = 0
) -> dict[Over, int]:
    """Return the counts of a whole optimiser step, over all data sets and ranks."""
    counts: dict[Over, int] = {"examples": 0, "predictions": 0, "tokens": 0}
    for number, positions in enumerate(_by_data_set(step, starts)):
        for name, value in sources[number].count(positions - starts[number], epoch).items():
            counts[name] += value
    return counts


def _by_data_set(step: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    owner = np.searchsorted(starts, step, side="right") - 1
    return [step[owner == number] for number in range(len(starts))]
