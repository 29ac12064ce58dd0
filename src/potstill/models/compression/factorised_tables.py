"""Narrow embedding tables and a map to the width of the states, in the place of wide tables (ALBERT: arXiv:1909.11942)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class NarrowTables(NamedTuple):
    tables: list[Tensor]  # (rows, size) each
    matrix: Tensor  # (width, size)
    bias: Tensor  # (width,)


def narrow_tables(words: Tensor, others: list[Tensor], norm: nn.Module, size: int) -> NarrowTables:
    """Tables so that matrix · LN(w' + o' + …) + bias is near norm(w + o + …), for a sum of one row of each table.

    `words` and `others`: (rows, width) each. With G = diag(gain)·(1 − mean), norm(s) is G·s, divided by the deviation of s,
    plus the norm's bias. The rows of G·s lie near the span of their size − 1 first principal directions P, for words and
    others drawn independently (Eckart and Young, 1936). The new tables hold G·s along P, turned so that their mean over
    the `size` numbers is zero: then a layer norm with gain 1 divides by their deviation alone. One scale is left for the
    matrix, the best in the mean of squares over all words.
    """
    assert isinstance(norm, nn.LayerNorm)
    gain, shift = norm.weight.detach().double(), norm.bias.detach().double()
    wide = [gain * (table.double() - table.double().mean(1, keepdim=True)) for table in (words, *others)]  # G·rows
    middle = torch.stack([table.mean(0) for table in wide]).sum(0)
    spread = sum((torch.cov(table.T, correction=0) for table in wide if len(table) > 1), torch.outer(middle, middle))
    directions = torch.linalg.eigh(spread).eigenvectors.flip(1)[:, : size - 1]  # (width, size − 1)
    turned = _without_mean(size) @ directions.T  # (size, width)
    tables = [table @ turned.T for table in wide]
    rest = middle - wide[0].mean(0)  # a word with the mean of all others
    raw = words.double() + torch.stack([table.double().mean(0) for table in others]).sum(0)
    expected = (wide[0] + rest) / (raw.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
    ours = nn.functional.layer_norm(tables[0] + rest @ turned.T, (size,), eps=norm.eps) @ turned  # in the full width
    scale = (ours * expected).sum() / (ours * ours).sum().clamp(min=torch.finfo(torch.float64).tiny)
    return NarrowTables(
        [table.to(words.dtype) for table in tables], (scale * turned.T).to(words.dtype), shift.to(words.dtype)
    )


def _without_mean(size: int) -> Tensor:
    """(size, size − 1): orthonormal columns, each with a mean of zero."""
    ones = torch.ones(size, 1, dtype=torch.float64)
    basis = torch.cat([ones, torch.eye(size, dtype=torch.float64)[:, : size - 1]], 1)
    return torch.linalg.qr(basis).Q[:, 1:]
