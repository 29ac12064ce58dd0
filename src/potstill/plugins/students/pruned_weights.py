"""Set the smallest weights to zero, and keep them there in training (Han et al., 2015; Frankle and Carbin, 2019)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

from potstill.api import BuildContext, Builder, InputError, Share, Student, held, masks, networks, quantized


@dataclass(frozen=True)
class PrunedWeights(Builder):
    """sparsity: share of the weights of the layers' matrices that are zero afterwards. In a stage with `repeat`, a list has
    one for each round.
    scope: one threshold for all matrices, or the same share of each.
    """

    sparsity: Share | list[Share] | tuple[Share, ...] = 0.5
    scope: Literal["global", "layer"] = "global"

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def sparsity_in(self, round_: int) -> float:
        if not isinstance(self.sparsity, list | tuple):
            return self.sparsity
        if round_ > len(self.sparsity):
            raise InputError(
                f"pruned_weights: sparsity names {len(self.sparsity)} shares, and this is round {round_}; "
                "write one for each round of `repeat`, such as sparsity = [0.5, 0.7, 0.8]"
            )
        return self.sparsity[round_ - 1]

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if quantized.stated_bits(model.config):
            raise InputError(
                "pruned_weights: this student is quantized, and what was rounded to zero would be pruned; write "
                "pruned_weights first, as in student = 'pruned_weights:0.5+fake_quantized:8'"
            )
        weights = masks.prunable(model)
        if not weights:
            raise InputError(
                f"pruned_weights: a {model.config.model_type} has no matrices between its embeddings and its head; "
                "omit pruned_weights"
            )
        # an earlier zero is one of the smallest weights, so that it needs no mask of its own
        kept = masks.masks_of_sparsity(weights, None, self.sparsity_in(context.round), self.scope == "layer")
        config = copy.deepcopy(model.config)
        setattr(config, held.PRUNED, True)
        pruned = {name: weight.detach().masked_fill(~kept[name], 0.0) for name, weight in weights.items()}
        built = networks.stock_model(model, config, model.state_dict() | pruned)
        return Student(built, copy.deepcopy(current.tokenizer))
