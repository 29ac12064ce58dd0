"""Remove the feed-forward neurons that matter least on the task's texts: smaller matrices, and a faster network."""

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
    linear_maps,
    networks,
    neurons,
    reading,
)


@dataclass(frozen=True)
class PrunedNeurons(Builder):
    """share: of the neurons of every layer that are removed; all layers keep as many, so that the student is a stock model.
    texts: how many train texts are read to see which neurons matter.
    """

    share: Share = 0.5
    texts: Count = 256
    architectures: ClassVar[tuple[str, ...]] = ("bert", "roberta", "distilbert", "mpnet", "electra")

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if linear_maps.is_factored(model):
            raise InputError(
                "pruned_neurons: the matrices of this student are two factors each; write pruned_neurons first, as in "
                "student = 'pruned_neurons:0.5+low_rank:0.5'"
            )
        places, field = neurons.feed_forwards(model), neurons.size_field(model)
        if places is None or field is None:
            raise InputError(
                f"pruned_neurons: the layers of a {model.config.model_type} have not one row of neurons between two "
                "linear layers; omit pruned_neurons, or keep fewer layers, as in student = 'keep_layers:3'"
            )
        read = reading.reading_of("pruned_neurons", current, context, self.texts)
        count = max(1, round((1 - self.share) * getattr(model.config, field)))
        weights = model.state_dict()
        active = neurons.activities(read.student, places, read.texts, read.longest)
        for place, activity in zip(places, active, strict=True):
            order = neurons.importance(model, place, activity).argsort(descending=True, stable=True)
            neurons.without_neurons(model, place, order[:count].sort().values, activity.mean, weights)
        config = copy.deepcopy(model.config)
        setattr(config, field, count)
        return Student(networks.stock_model(model, config, weights), copy.deepcopy(current.tokenizer))
