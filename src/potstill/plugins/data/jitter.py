"""Images moved by a few pixels, anew in every epoch (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531). The teacher is asked live."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from potstill.data.batches import Draw
from potstill.data.examples import Examples
from potstill.data.making import Context
from potstill.errors import InputError
from potstill.recipe.bounds import Count
from potstill.signals import Batch, View


@dataclass(frozen=True)
class Jitter:
    """By up to `pixels` up or down and left or right, all equally likely; zeros come in at the edge."""

    pixels: Count = 2

    def make(self, examples: Examples, context: Context) -> Examples:
        if context.task is None or context.task.form != "pixels":
            raise InputError("data.jitter moves images, but the rows are texts; leave it out")
        return examples

    def change(self, batch: Batch, draw: Draw) -> Batch:
        """Student and teacher see the same moved image."""
        moves = torch.from_numpy(np.floor(draw(2) * (2 * self.pixels + 1)).astype(np.int64)) - self.pixels
        ours = _moved(batch.student, moves)
        return replace(
            batch, student=ours, teacher=ours if batch.teacher is batch.student else _moved(batch.teacher, moves)
        )


def _moved(view: View, moves: Tensor) -> View:
    inputs = {**view.inputs, "pixel_values": moved(view.inputs["pixel_values"], moves)}
    return replace(view, inputs=inputs)


def moved(images: Tensor, moves: Tensor) -> Tensor:
    """(batch, channels, height, width) by (batch, 2) pixels down and to the right."""
    most = int(moves.abs().max())
    height, width = images.shape[-2:]
    wide = F.pad(images, (most, most, most, most)).flatten(2)  # (batch, channels, pixels)
    down = torch.arange(height) + most - moves[:, :1]  # (batch, height): where each row is taken from
    right = torch.arange(width) + most - moves[:, 1:]
    places = (down[:, :, None] * (width + 2 * most) + right[:, None, :]).flatten(1)
    return wide.gather(2, places[:, None].expand(-1, images.shape[1], -1)).view_as(images)
