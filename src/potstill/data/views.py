"""Rows as padded NumPy arrays, and where their predictions are read. It needs no torch: `predict` works with these alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potstill.data.task import DataTask
from potstill.data.tokens import Tokens


@dataclass(frozen=True)
class ArrayView:
    """One model's reading of some rows; `potstill.signals.View` is the same with tensors."""

    inputs: dict[str, np.ndarray]  # arguments of forward
    real: np.ndarray  # (batch, tokens) bool: not padding
    at: np.ndarray  # (places, 2) row and position where the head is read
    layout: np.ndarray | None  # (predictions, classes); None: a place is a prediction

    def predictions(self, heads: np.ndarray) -> np.ndarray:
        """Return the logits, (predictions, classes), of a head's (batch, outputs) or (batch, tokens, outputs)."""
        rows = heads if heads.ndim == 3 else heads[:, None]  # a head for the whole row is read at one place
        places: np.ndarray = rows[self.at[:, 0], self.at[:, 1]]
        if self.layout is None:
            return places
        impossible = np.full(1, -np.inf, places.dtype)
        return np.asarray(np.concatenate([places.reshape(-1), impossible])[self.layout])


def array_view(task: DataTask, tokens: Tokens, rows: np.ndarray) -> ArrayView:
    """Return rows as arrays, padded to the longest sequence."""
    sequences = tokens.sequences(rows)
    lengths = tokens.sizes(sequences)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    places = (tokens.offsets[sequences][:, None] + columns)[real]  # in the flat files
    ids = np.full(real.shape, tokens.padding, np.int64)
    segments = np.zeros(real.shape, np.int64)
    ids[real], segments[real] = tokens.ids[places], tokens.segments[places]
    arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": segments}
    if tokens.pixels is not None:
        arrays["pixel_values"] = tokens.pixels[sequences].astype(np.float32) / 255
    at, layout = task.places(tokens, rows)
    return ArrayView(task.inputs(arrays, real, tokens), real, at, layout)


def split_by_tokens(positions: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Return micro-batches of at most `tokens` padded tokens, longest first. A longer example is a micro-batch alone."""
    ordered = positions[np.argsort(-lengths[positions], kind="stable")]
    parts, begin = [], 0
    while begin < len(ordered):
        size = max(1, tokens // max(int(lengths[ordered[begin]]), 1))
        parts.append(ordered[begin : begin + size])
        begin += size
    return parts
