"""Move images by a few pixels in every epoch (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from potstill.api import Batch, Count, Draw, EpochDataMaker, Examples, InputError, MakeContext, View, torch


@dataclass(frozen=True)
class Jitter(EpochDataMaker):
    """pixels: the largest move up or down and left or right; all moves are equally likely. Zeros fill the edge."""

    pixels: Count = 2

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        if context.task is None or not context.task.images:
            raise InputError("data.jitter moves images, but the rows are texts; omit it")
        return examples

    def change(self, batch: Batch, draw: Draw) -> Batch:
        """Move each image; student and teacher see the same one."""
        moves = torch.from_numpy(np.floor(draw(2) * (2 * self.pixels + 1)).astype(np.int64)) - self.pixels

        def moved_view(view: View) -> View:
            return replace(view, inputs={**view.inputs, "pixel_values": moved(view.inputs["pixel_values"], moves)})

        student = moved_view(batch.student)
        shared = batch.teacher is batch.student
        return replace(batch, student=student, teacher=student if shared else moved_view(batch.teacher))


def moved(images: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Move (batch, channels, height, width) by (batch, 2) pixels down and to the right."""
    most = int(moves.abs().max())
    height, width = images.shape[-2:]
    wide = torch.nn.functional.pad(images, (most, most, most, most)).flatten(2)  # (batch, channels, pixels)
    down = torch.arange(height) + most - moves[:, :1]  # (batch, height): where each row is taken from
    right = torch.arange(width) + most - moves[:, 1:]
    places = (down[:, :, None] * (width + 2 * most) + right[:, None, :]).flatten(1)
    return wide.gather(2, places[:, None].expand(-1, images.shape[1], -1)).view_as(images)
