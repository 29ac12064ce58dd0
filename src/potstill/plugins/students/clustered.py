"""Let the weights of a matrix share few values, which training moves together (Han et al., 2016, arXiv:1510.00149)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from potstill.api import (
    BuildContext,
    Builder,
    InputError,
    Student,
    clusters,
    held,
    masks,
    networks,
    quantized,
    torch,
)

Values = Annotated[int, Field(ge=2, le=2**14)]
SMALL = 16  # a matrix with fewer weights than this for every value keeps them as they are: there is nothing to gain


@dataclass(frozen=True)
class Clustered(Builder):
    """values: how many values a matrix of the layers may have, besides zero: 32 take five bits, less when they are coded.
    embeddings: the same for each embedding table. None: the tables stay as they are.
    """

    values: Values = 32
    embeddings: Values | None = 32

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if quantized.stated_bits(model.config):
            raise InputError(
                "clustered: this student is quantized, and shared values are not on its grid; write clustered, or "
                "fake_quantized with bits, and not both"
            )
        counts = dict.fromkeys(masks.prunable(model), self.values)
        if self.embeddings is not None:
            counts |= dict.fromkeys(masks.tables(model), self.embeddings)
        weights, every = model.state_dict(), list(model.named_parameters(remove_duplicate=False))
        for name, count in counts.items():
            matrix = model.get_parameter(name)
            if matrix.numel() >= SMALL * count:
                shared = _shared(matrix, count)
                weights |= {other: shared for other, parameter in every if parameter is matrix}  # tied weights too
        config = copy.deepcopy(model.config)
        setattr(config, held.CLUSTERS, max(counts.values(), default=self.values))
        return Student(networks.stock_model(model, config, weights), copy.deepcopy(current.tokenizer))


def _shared(weight: torch.Tensor, count: int) -> torch.Tensor:
    """The matrix with `count` values at most; zeros stay zero and take no part."""
    weight = weight.detach().clone()
    kept = weight != 0
    if bool(kept.any()):
        found = clusters.k_means(weight[kept].cpu().numpy(), count)
        values = torch.from_numpy(found.centroids).to(weight)
        weight[kept] = values[torch.from_numpy(found.codes).to(weight.device)]
    return weight
