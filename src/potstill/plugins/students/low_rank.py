"""Two narrow matrices for each one of the layers, so that outputs on the task's texts change least (DRONE, SVD-LLM)."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from potstill.api import (
    BuildContext,
    Builder,
    Count,
    InputError,
    Share,
    Student,
    anatomy,
    held,
    linear_maps,
    low_rank,
    networks,
    quantized,
    reading,
    torch,
)


@dataclass(frozen=True)
class LowRank(Builder):
    """W ≈ L·R, with L and R of as many columns and rows as the rank.

    share: of the numbers of a matrix that its two factors may have; from it follows the rank.
    energy: None, or in place of share, of the mean square of a matrix's outputs that the factors keep: each matrix has the
    rank that it needs.
    texts: how many train texts are read to see what the outputs are. None: none, the plain singular value decomposition.
    """

    share: Share = 0.5
    energy: Share | None = None
    texts: Count | None = 256

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if not anatomy.has_layers(model):
            raise InputError(f"low_rank: a {anatomy.architecture_name(model)} has no layers; omit low_rank")
        if held.is_pruned(model.config) or held.clusters_of(model.config):
            raise InputError(
                "low_rank: the factors of a pruned or clustered matrix are neither; write low_rank first, as in "
                "student = 'low_rank:0.5+pruned_weights:0.5'"
            )
        if quantized.stated_bits(model.config):
            raise InputError(
                "low_rank: this student is quantized, and its factors would not be; write low_rank first, as in "
                "student = 'low_rank:0.5+fake_quantized:8'"
            )
        maps = linear_maps.linear_maps(model)
        moments = self._moments(current, context, list(maps))
        weights, gained = model.state_dict(), False
        for name, module in maps.items():
            seen = moments.get(name)
            directions = linear_maps.directions_of(module, seen)
            rank = self._rank(module, directions)
            if linear_maps.numbers_as_factors(module, rank) < linear_maps.numbers(module):
                linear_maps.put_factors(weights, name, module, directions, rank, seen)
                gained = True
        if not gained:
            asked = f"share = {self.share}" if self.energy is None else f"energy = {self.energy}"
            raise InputError(
                f"low_rank: with {asked} no matrix would have fewer numbers as two factors; write a smaller one, "
                "such as share = 0.5"
            )
        return Student(networks.reshaped_model(model, model.config, weights), copy.deepcopy(current.tokenizer))

    def _rank(self, module: torch.nn.Module, directions: linear_maps.Directions) -> int:
        rows, columns = linear_maps.matrix_of(module).shape
        if self.energy is None:
            return low_rank.rank_of_budget(rows, columns, self.share)
        return directions.rank_of_energy(self.energy)

    def _moments(self, current: Student, context: BuildContext, names: list[str]) -> dict[str, linear_maps.Moments]:
        if self.texts is None or current.model.config.is_encoder_decoder:  # its decoder reads texts that are not here
            return {}
        instead = "give rows with text, or write texts = 'none'"
        read = reading.reading_of("low_rank", current, context, self.texts, instead)
        return linear_maps.moments_of(read.student, names, read.texts, read.longest)
