"""The sizes of batches before they are made: how an epoch, an evaluation or the teacher's rows are split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order, step_positions
from potstill.training.setup import Training


class BatchRows(NamedTuple):
    """The examples of one batch."""

    step: int  # of the optimizer
    data: int  # number of the data set
    positions: np.ndarray  # among its examples


@dataclass(frozen=True)
class BatchSizes:
    """Batches padded to their longest sequence; all arrays are (batches,). Seq2seq models pad source and target apart."""

    sequences: np.ndarray
    lengths: np.ndarray  # tokens of each sequence, with padding
    data: np.ndarray  # number of the data set
    steps: np.ndarray  # number of the optimizer step
    targets: np.ndarray | None = None  # the part of `lengths` that a decoder reads; None without a decoder

    @property
    def tokens(self) -> np.ndarray:
        return self.sequences * self.lengths

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, batches: np.ndarray) -> BatchSizes:
        targets = None if self.targets is None else self.targets[batches]
        return BatchSizes(
            self.sequences[batches], self.lengths[batches], self.data[batches], self.steps[batches], targets
        )


def batch_sizes(batches: Iterable[BatchRows], sources: list[TokenisedSet]) -> BatchSizes:
    """The sizes of batches in the student's tokens."""
    counts = [source.student.counts(source.examples.index) for source in sources]
    longest = [source.lengths // count for source, count in zip(sources, counts, strict=True)]
    seq2seq = [source.task.head == "Seq2SeqLM" for source in sources]
    target_lengths = [
        source.task.predictions(source.student, source.examples.index) if two else 0 * lengths
        for source, two, lengths in zip(sources, seq2seq, longest, strict=True)
    ]
    source_lengths = [lengths - targets for lengths, targets in zip(longest, target_lengths, strict=True)]
    sizes = []
    for step, data, positions in batches:
        target = target_lengths[data][positions].max()
        length = source_lengths[data][positions].max() + target
        sizes.append((counts[data][positions].sum(), length, data, step, target))
    sequences, lengths, numbers, steps, targets = np.array(sizes, np.int64).reshape(-1, 5).T
    return BatchSizes(sequences, lengths, numbers, steps, targets if any(seq2seq) else None)


def epoch_batches(training: Training, epoch: int = 0) -> list[BatchRows]:
    """The micro-batches of an epoch, in the order of training."""
    stage = training.stage
    lengths, starts = all_lengths(training.sources)
    order = epoch_order(lengths, stage.batch, training.seed, training.number, epoch, "order")
    return [
        BatchRows(step, data, positions)
        for step, rows in enumerate(order)
        for data, positions in step_positions(rows, lengths, starts, stage.tokens)
    ]


def reading_batches(sources: list[TokenisedSet], tokens: int) -> list[BatchRows]:
    """Batches for evaluation and for the teacher, all of step 0."""
    return [
        BatchRows(0, number, positions)
        for number, source in enumerate(sources)
        for positions in source.positions_in_order(tokens)
    ]


def parallel_seconds(seconds: np.ndarray, sizes: BatchSizes, devices: int) -> float:
    """Seconds of all steps, if the micro-batches of each step are dealt to devices in turn and the slowest is waited for.

    With fewer micro-batches in a step than devices, the other devices are idle.
    """
    if not len(sizes):
        return 0.0
    _, first, step, counts = np.unique(sizes.steps, return_index=True, return_inverse=True, return_counts=True)
    devices = min(devices, int(counts.max()))
    device = (np.arange(len(sizes)) - first[step]) % devices
    by_device = np.bincount(step * devices + device, weights=seconds, minlength=len(first) * devices)
    return float(by_device.reshape(-1, devices).max(1).sum())


def token_counts(source: TokenisedSet) -> np.ndarray:
    """(n,) tokens of each example for the student, without padding."""
    rows = source.examples.index
    sizes = source.student.sizes(source.student.sequences(rows))
    counts = source.student.counts(rows)
    return np.add.reduceat(sizes, np.cumsum(counts) - counts) if len(rows) else sizes


def token_count(source: TokenisedSet) -> int:
    return int(token_counts(source).sum())
