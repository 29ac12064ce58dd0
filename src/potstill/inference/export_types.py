"""Finished forms of a student. One file is one export; its name is the word that users type: `potstill export DIR --to onnx`.

An export is a frozen dataclass with `export(student, out, rows)`: it writes a folder that `predict` and `measure` read,
checks it against PyTorch at once, and returns what it found. `rows` are examples to check, and later to calibrate, with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from potstill.data.pixel_reader import PixelReader
from potstill.models.student import Student

NAMES = ("input_ids", "attention_mask", "token_type_ids")
Rows = Sequence[tuple[str, str | None]]
"""Text and pair of each, in the form that the student's task has."""


@dataclass(frozen=True)
class Checked:
    """An exported file and how it compares with PyTorch."""

    file: Path
    difference: float  # largest
    agreement: float  # share of predictions that are the same
    of: str = "a logit"  # what differs
    rows: int | None = None  # that were compared; None: all that were given
    answers: int | None = None  # of them, those that were answered anew; None: all


class Export(Protocol):
    def export(self, student: Student, out: Path, rows: Rows) -> Checked: ...


def sample_inputs(student: Student, rows: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Random ids with padding of many lengths, for a form that must hold whatever the text; or random images."""
    random = np.random.default_rng(seed)
    if isinstance(student.tokenizer, PixelReader):
        pixels = random.integers(0, 256, (rows, *student.tokenizer.shape))
        return {"pixel_values": torch.from_numpy(pixels).float() / 255}
    ids = torch.from_numpy(random.integers(0, len(student.tokenizer), (rows, tokens)))
    lengths = torch.from_numpy(random.integers(2, tokens + 1, rows))
    lengths[0] = tokens
    real = torch.arange(tokens)[None] < lengths[:, None]
    padding = int(student.tokenizer.pad_token_id or 0)
    ids = torch.where(ids == padding, (padding + 1) % len(student.tokenizer), ids)
    second = torch.zeros_like(ids)
    if getattr(student.model.config, "pairs", False):  # a network that tells the two texts of a row apart
        second = (torch.arange(tokens)[None] >= torch.from_numpy(random.integers(0, tokens + 1, (rows, 1)))).long()
    made = {
        "input_ids": torch.where(real, ids, padding),
        "attention_mask": real.long(),
        "token_type_ids": torch.where(real, second, 0),
    }
    return {name: made[name] for name in NAMES if name in student.tokenizer.model_input_names}
