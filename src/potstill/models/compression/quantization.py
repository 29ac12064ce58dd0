"""Uniform quantization: weights as whole numbers of few bits, a scale, and the whole number that stands for zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SCALE = 2.0**-23  # a matrix of zeros would have the scale 0


@dataclass(frozen=True)
class Grid:
    """The values that weights may take: (q − zero_point)·scale for whole numbers q from `lowest` to `highest`.

    `scale` and `zero_point` have one number, or with a grid per row the shape (rows, 1).
    """

    scale: Tensor
    zero_point: Tensor
    lowest: int
    highest: int

    def whole_numbers(self, weights: Tensor) -> Tensor:
        """q = round(w/scale) + zero_point within the range; halves are rounded to the even number."""
        return (torch.round(weights / self.scale) + self.zero_point).clamp(self.lowest, self.highest)

    def values(self, whole_numbers: Tensor) -> Tensor:
        return (whole_numbers - self.zero_point) * self.scale

    def nearest(self, weights: Tensor) -> Tensor:
        """Every weight as the value of the grid that is nearest."""
        return self.values(self.whole_numbers(weights))


def grid_of(weights: Tensor, bits: int, symmetric: bool = True, per_row: bool = False, narrow: bool = False) -> Grid:
    """The grid of a matrix (rows, columns), from its smallest to its largest weight.

    symmetric: zero_point is 0, and the scale is max|w| over half the number of steps. Otherwise the range is widened to hold 0.
    narrow: without the lowest number, so that there are as many below zero as above: −127 to 127.
    per_row: a grid for every row, which is an output of a linear layer.
    """
    lowest, highest = -(2 ** (bits - 1)) + int(narrow), 2 ** (bits - 1) - 1
    steps = highest - lowest
    least, most = _ends(weights, per_row)
    if symmetric:
        scale = (torch.maximum(-least, most) / (steps / 2)).clamp(min=SMALLEST_SCALE)
        return Grid(scale, torch.zeros_like(scale), lowest, highest)
    scale = ((most - least) / steps).clamp(min=SMALLEST_SCALE)
    zero_point = (lowest - torch.round(least / scale)).clamp(lowest, highest)
    return Grid(scale, zero_point, lowest, highest)


def _ends(weights: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
    """The smallest and the largest weight, and 0 where all are on one side of it."""
    least, most = weights.aminmax(dim=1, keepdim=True) if per_row else weights.aminmax()
    return least.clamp(max=0), most.clamp(min=0)
