"""The batches of an epoch, of an evaluation and of the teacher's rows: their sizes, before any batch is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order, step_positions
from potstill.training.setup import Training


@dataclass(frozen=True)
class Batches:
    """Batches padded to their longest sequence. All arrays are (batches,). Seq2seq models pad source and target apart."""

    positions: Sequence[np.ndarray]  # of the examples in their data set
    sequences: np.ndarray
    lengths: np.ndarray  # tokens of each sequence, with padding
    targets: np.ndarray  # the part of `lengths` that the decoder of a seq2seq model reads
    data: np.ndarray  # number of the data set
    steps: np.ndarray  # number of the optimizer step

    @property
    def tokens(self) -> np.ndarray:
        return self.sequences * self.lengths

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, numbers: np.ndarray) -> Batches:
        arrays = (self.sequences, self.lengths, self.targets, self.data, self.steps)
        return Batches([self.positions[number] for number in numbers], *(array[numbers] for array in arrays))

    def sample(self, by_tokens: Sequence[float], by_length: Sequence[float] = ()) -> Batches:
        """The batches at these quantiles of tokens and of lengths, each once, the shortest first."""
        orders = [
            (np.lexsort((self.lengths, self.tokens)), by_tokens),
            (np.lexsort((self.tokens, self.lengths)), by_length),
        ]
        numbers = np.unique([order[round(q * (len(order) - 1))] for order, quantiles in orders for q in quantiles])
        return self.take(numbers[np.argsort(self.tokens[numbers], kind="stable")])


def make_batches(sources: Sequence[TokenisedSet], rows: Sequence[tuple[int, int, np.ndarray]]) -> Batches:
    """`rows`: for each batch its step, the number of its data set, and the positions of its examples."""
    examples = [example_sizes(source) for source in sources]
    sizes = []
    for step, data, positions in rows:
        sequences, source_lengths, targets = examples[data][:, positions]
        sizes.append((sequences.sum(), source_lengths.max() + targets.max(), targets.max(), data, step))
    return Batches([positions for _, _, positions in rows], *np.array(sizes, np.int64).reshape(-1, 5).T)


def example_sizes(source: TokenisedSet) -> np.ndarray:
    """(3, examples) in the student's tokens: sequences, and the tokens of the longest one in source and in target."""
    rows = source.examples.index
    counts = source.student.counts(rows)
    lengths = source.lengths // counts
    targets = source.task.predictions(source.student, rows) if source.task.two_stacks else 0 * lengths
    return np.stack([counts, lengths - targets, targets])


def epoch_batches(training: Training) -> Batches:
    """The micro-batches of the first epoch, in the order of training."""
    stage = training.stage
    lengths, starts = all_lengths(training.sources)
    order = epoch_order(lengths, stage.batch, training.seed, training.number, 0, "order")
    rows = [
        (step, data, positions)
        for step, examples in enumerate(order)
        for data, positions in step_positions(examples, lengths, starts, stage.tokens)
    ]
    return make_batches(training.sources, rows)


def reading_batches(sources: Sequence[TokenisedSet], tokens: int) -> Batches:
    """Batches for evaluation and for the teacher, all of step 0."""
    split = enumerate(source.positions_in_order(tokens) for source in sources)
    return make_batches(sources, [(0, data, positions) for data, batches in split for positions in batches])


def parallel_seconds(seconds: np.ndarray, steps: np.ndarray, devices: int) -> float:
    """Seconds of all steps, if the micro-batches of each step are dealt to devices in turn and the slowest is waited for.

    With fewer micro-batches in a step than devices, the other devices are idle.
    """
    if not len(steps):
        return 0.0
    _, first, step, counts = np.unique(steps, return_index=True, return_inverse=True, return_counts=True)
    devices = min(devices, int(counts.max()))
    device = (np.arange(len(steps)) - first[step]) % devices
    by_device = np.bincount(step * devices + device, weights=seconds, minlength=len(first) * devices)
    return float(by_device.reshape(-1, devices).max(1).sum())


def token_counts(source: TokenisedSet) -> np.ndarray:
    """(n,) tokens of each example for the student, without padding."""
    rows = source.examples.index
    sizes = source.student.sizes(source.student.sequences(rows))
    counts = source.student.counts(rows)
    return np.add.reduceat(sizes, np.cumsum(counts) - counts) if len(rows) else sizes
