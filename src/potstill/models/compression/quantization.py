"""Uniform quantization: weights as whole numbers of few bits, a scale, and the whole number that stands for zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SCALE = 2.0**-23  # a matrix of zeros would have the scale 0
TRIED = 24  # scales from that of the largest weight down to a small part of it


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


@dataclass(frozen=True)
class Levels:
    """How weights are rounded: to −top … top times a scale. One bit has no zero: −1 or 1 times a scale.

    per_row: each row has a scale, as the outputs of a linear layer and the tokens of a table; otherwise the whole matrix.
    pruned: zeros are pruned weights and stay; no other weight is rounded to zero.
    """

    bits: int
    per_row: bool = True
    pruned: bool = False

    @property
    def top(self) -> int:
        return max(1, 2 ** (self.bits - 1) - 1)

    def whole_numbers(self, weights: Tensor, scale: Tensor) -> Tensor:
        """(rows, columns) and a scale, (rows, 1) or one number -> whole numbers, as floats."""
        found = Grid(scale, torch.zeros_like(scale), -self.top, self.top).whole_numbers(weights)
        if self.pruned or self.bits == 1:
            found = torch.where(found == 0, weights.sign(), found)
        if self.bits == 1 and not self.pruned:
            found = torch.where(found == 0, 1.0, found)
        return found

    def rounded(self, weights: Tensor, scale: Tensor) -> Tensor:
        return self.whole_numbers(weights, scale) * scale

    def widest_scale(self, weights: Tensor) -> Tensor:
        """From the largest weight, so that nothing is cut off. On rounded weights, the scale that they were rounded by."""
        return grid_of(weights, max(2, self.bits), per_row=self.per_row, narrow=True).scale

    def refitted(self, weights: Tensor, scale: Tensor) -> Tensor:
        """The scale with the smallest squared error for the whole numbers that this one gives; for one bit the mean of |w|
        (Rastegari et al., 2016, arXiv:1603.05279). At most the widest: then the largest weight is always at the top."""
        found = self.whole_numbers(weights, scale)
        fitting = self._sum(weights * found) / self._sum(found.square()).clamp(min=1)
        return torch.minimum(fitting, self.widest_scale(weights)).clamp(min=SMALLEST_SCALE)

    def _sum(self, numbers: Tensor) -> Tensor:
        """Over all weights that have one scale."""
        return numbers.sum(dim=1, keepdim=True) if self.per_row else numbers.sum()

    def best_scale(self, weights: Tensor) -> Tensor:
        """The scale with the smallest squared error of those tried, and of what they become when they are refitted once."""
        widest = self.widest_scale(weights)
        best, least = widest, torch.full_like(widest, torch.inf)
        for factor in torch.linspace(1, 1 / TRIED, TRIED).tolist():
            tried = widest * factor
            for scale in (tried, self.refitted(weights, tried)):
                error = self._sum((self.rounded(weights, scale) - weights).square())
                best = torch.where(error < least, scale, best)
                least = torch.minimum(error, least)
        return self.refitted(weights, best)
