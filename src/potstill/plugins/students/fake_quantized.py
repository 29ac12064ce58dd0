"""Weights of 8 to 1 bits, trained as such (Jacob et al., 2018, arXiv:1712.05877)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from potstill.api import BuildContext, Builder, InputError, Student, held, masks, networks, quantized

Bits = Annotated[int, Field(ge=1, le=8)]


@dataclass(frozen=True)
class FakeQuantized(Builder):
    """The weights are stored as float32 numbers, of which each matrix has only those that so many bits can say.

    bits: of the weights of the layers' matrices.
    embeddings: of the embedding tables. None: the tables stay as they are.
    scales: one for each row, which is an output or a token; or one for the matrix, as the export huffman wants it.
    """

    bits: Bits = 8
    embeddings: Bits | None = 8
    scales: Literal["row", "matrix"] = "row"

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if not masks.prunable(model):
            raise InputError(
                f"fake_quantized: a {model.config.model_type} has no matrices between its embeddings and its head; "
                "omit fake_quantized"
            )
        if held.clusters_of(model.config):
            raise InputError(
                "fake_quantized: this student is clustered, and its shared values are not on a grid; write clustered, "
                "or fake_quantized, and not both"
            )
        config = copy.deepcopy(model.config)
        stated = {"layers": self.bits, "embeddings": self.embeddings, "per_row": self.scales == "row"}
        setattr(config, quantized.BITS, stated)
        built = networks.stock_model(model, config, model.state_dict())
        quantized.round_weights(built, held.is_pruned(config))
        return Student(built, copy.deepcopy(current.tokenizer))
