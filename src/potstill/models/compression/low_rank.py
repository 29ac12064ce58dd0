"""Matrices as products of two narrow ones: truncated singular value decomposition, the best approximation of its rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Factors(NamedTuple):
    """W ≈ left @ right."""

    left: Tensor  # (rows, rank)
    right: Tensor  # (rank, columns)

    @property
    def product(self) -> Tensor:
        return self.left @ self.right

    @property
    def parameters(self) -> int:
        return self.left.numel() + self.right.numel()


def factors_of(matrix: Tensor, rank: int) -> Factors:
    """The first `rank` singular triples of a matrix; both factors get the root of the singular values.

    Computed in float64. The signs of singular vectors are not unique: the largest entry of each column of `left` is positive.
    """
    left, _, _ = torch.linalg.svd(matrix.detach().double(), full_matrices=False)
    return factors_along(matrix, left[:, :rank])


def energies(matrix: Tensor) -> Tensor:
    """The share of the sum of squares that the first 1, 2, 3 … singular values keep."""
    squares = torch.linalg.svdvals(matrix.detach().double()) ** 2
    return squares.cumsum(0) / squares.sum()


def rank_of_energy(matrix: Tensor, share: float) -> int:
    """The smallest rank that keeps this share of the energy."""
    return rank_keeping(torch.linalg.svdvals(matrix.detach().double()) ** 2, share)


def rank_keeping(energies: Tensor, share: float) -> int:
    """How many of the directions with these energies, the largest first, keep this share of all of it."""
    kept = energies.clamp(min=0).cumsum(0)
    return min(int((kept < share * kept[-1]).sum()) + 1, len(kept))


def rank_of_budget(rows: int, columns: int, share: float) -> int:
    """The largest rank whose factors have at most this share of the numbers of the matrix, at least 1."""
    return max(1, int(share * rows * columns / (rows + columns)))


def largest_smaller_rank(rows: int, columns: int) -> int:
    """The largest rank whose factors have fewer numbers than the matrix; 0 if there is none."""
    return (rows * columns - 1) // (rows + columns)


def factors_along(matrix: Tensor, directions: Tensor) -> Factors:
    """The nearest product whose outputs lie along orthonormal directions (rows, rank): U·(Uᵀ·W), as `factors_of` scales it.

    Both factors of a direction are equally long. Along the first principal directions of a layer's outputs no other factors
    of this rank have a smaller mean squared error on its inputs (DRONE: Chen et al., 2021; SVD-LLM: arXiv:2403.07378).
    """
    right = directions.T @ matrix.detach().double()
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()  # (1, rank)
    lengths = right.norm(dim=1).sqrt()
    left = directions * signs * lengths
    right = right * signs.T / lengths[:, None].clamp(min=torch.finfo(torch.float64).tiny)
    return Factors(left.to(matrix.dtype), right.to(matrix.dtype))
