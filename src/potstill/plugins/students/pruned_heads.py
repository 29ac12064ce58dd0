"""Remove the attention heads that matter least on the task's texts (Michel et al., 2019, arXiv:1905.10650)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from potstill.api import (
    BuildContext,
    Builder,
    Count,
    InputError,
    Share,
    Student,
    anatomy,
    attention_heads,
    linear_maps,
    networks,
    reading,
)


@dataclass(frozen=True)
class PrunedHeads(Builder):
    """The matrices are sliced. What matters is how much the attention's output changes, not the gradient of the paper's mask.

    share: of the heads of every layer that are removed; all layers keep as many, at least one.
    texts: how many train texts are read to see which heads matter.
    """

    share: Share = 0.5
    texts: Count = 256
    architectures: ClassVar[tuple[str, ...]] = ("bert", "roberta", "distilbert", "electra", "modernbert")

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if linear_maps.is_factored(model):
            raise InputError(
                "pruned_heads: the matrices of this student are two factors each; write pruned_heads first, as in "
                "student = 'pruned_heads:0.5+low_rank:0.5'"
            )
        places = None if model.config.is_encoder_decoder else attention_heads.attentions(model)
        if not places:
            raise InputError(
                f"pruned_heads: the heads of a {anatomy.architecture_name(model)} cannot be removed one by one; omit "
                "pruned_heads, or keep fewer layers, as in student = 'keep_layers:3'"
            )
        read = reading.reading_of("pruned_heads", current, context, self.texts)
        names = [place.outer for place in places]
        moments = linear_maps.moments_of(read.student, names, read.texts, read.longest, of_inputs=True)
        weights, count = model.state_dict(), max(1, round((1 - self.share) * places[0].heads))
        for place in places:
            given = moments[place.outer]
            order = attention_heads.importance(place, weights, given).argsort(descending=True, stable=True)
            attention_heads.without_heads(place, order[:count].sort().values, given.mean, weights)
        config = copy.deepcopy(model.config)
        if attention_heads.state_heads(config, count):
            built = networks.stock_model(model, config, weights)
        else:
            built = networks.reshaped_model(model, config, weights)
        return Student(built, copy.deepcopy(current.tokenizer))
