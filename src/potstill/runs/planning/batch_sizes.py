"""Batches by their sizes alone: what an epoch, a scoring or a remembering is cut into, before any of it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from potstill.data.batches import TokenisedSet, all_lengths, epoch_order, step_positions
from potstill.training.setup import Training

Piece = tuple[int, int, np.ndarray]
"""An optimiser step, the number of a data set, and positions among its examples."""


@dataclass(frozen=True)
class Shapes:
    """Batches that are padded to their longest sequence, all (batches,). A translator pads source and target apart."""

    sequences: np.ndarray
    lengths: np.ndarray  # tokens of each sequence, padding among them
    owners: np.ndarray  # number of the data set
    steps: np.ndarray  # number of the optimiser step
    targets: np.ndarray | None = None  # of the lengths, what a decoder reads; None: there is none

    @property
    def tokens(self) -> np.ndarray:
        return self.sequences * self.lengths

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, which: np.ndarray) -> Shapes:
        targets = None if self.targets is None else self.targets[which]
        return Shapes(self.sequences[which], self.lengths[which], self.owners[which], self.steps[which], targets)


def shapes_of(pieces: Iterable[Piece], sources: list[TokenisedSet]) -> Shapes:
    """In the student's reading."""
    counts = [source.student.counts(source.examples.index) for source in sources]
    longest = [source.lengths // ours for source, ours in zip(sources, counts, strict=True)]
    apart = [source.task.head == "Seq2SeqLM" for source in sources]
    written = [
        source.task.predictions(source.student, source.examples.index) if two else 0 * lengths
        for source, two, lengths in zip(sources, apart, longest, strict=True)
    ]
    read = [lengths - targets for lengths, targets in zip(longest, written, strict=True)]
    found = []
    for step, owner, positions in pieces:
        targets = written[owner][positions].max()
        length = read[owner][positions].max() + targets
        found.append((counts[owner][positions].sum(), length, owner, step, targets))
    sequences, lengths, owners, steps, targets = np.array(found, np.int64).reshape(-1, 5).T
    return Shapes(sequences, lengths, owners, steps, targets if any(apart) else None)


def epoch_pieces(training: Training, epoch: int = 0) -> list[Piece]:
    """The micro-batches of an epoch, in the order in which they will be met."""
    stage = training.stage
    lengths, starts = all_lengths(training.sources)
    order = epoch_order(lengths, stage.batch, training.seed, training.number, epoch, "order")
    return [
        (step, owner, positions)
        for step, rows in enumerate(order)
        for owner, positions in step_positions(rows, lengths, starts, stage.tokens)
    ]


def read_pieces(sources: list[TokenisedSet], tokens: int) -> list[Piece]:
    """Batches for asking or scoring; they make no steps, so all are of step 0."""
    return [
        (0, owner, positions) for owner, source in enumerate(sources) for positions in source.positions_in_order(tokens)
    ]


def spread_out(seconds: np.ndarray, shapes: Shapes, devices: int) -> float:
    """Seconds of all steps where the micro-batches of a step are dealt to devices in turn, and the last one is waited for.

    A step of fewer micro-batches than devices is no faster by the rest.
    """
    if not len(shapes):
        return 0.0
    _, first, step, sizes = np.unique(shapes.steps, return_index=True, return_inverse=True, return_counts=True)
    devices = min(devices, int(sizes.max()))  # the others of a large number have nothing to do
    device = (np.arange(len(shapes)) - first[step]) % devices
    shares = np.bincount(step * devices + device, weights=seconds, minlength=len(first) * devices)
    return float(shares.reshape(-1, devices).max(1).sum())
