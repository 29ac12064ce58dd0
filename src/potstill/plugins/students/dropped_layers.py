"""Drop the layers that change the states of the task's texts least (block influence: Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.api import BuildContext, Builder, Count, InputError, Pace, Student, anatomy, influence, reading
from potstill.plugins.students.keep_layers import KeepLayers


@dataclass(frozen=True)
class DroppedLayers(Builder):
    """layers: how many are dropped.
    texts: how many train texts are read to see what each layer changes.
    """

    layers: Count = 1
    texts: Count = 256

    @property
    def pace(self) -> Pace:
        return KeepLayers(max(1, 12 - self.layers)).pace

    def build(self, current: Student, context: BuildContext) -> Student:
        count = anatomy.layer_count(current.model)
        anatomy.layers_path(current.model)  # refuses networks without layers
        if self.layers >= count:
            raise InputError(f"dropped_layers: {self.layers} of {count} layers cannot go; write at most {count - 1}")
        if current.model.config.is_encoder_decoder or current.model.can_generate():
            raise InputError("dropped_layers: this model writes; choose its layers by position, as in 'keep_layers:3'")
        read = reading.reading_of("dropped_layers", current, context, self.texts)
        # in several architectures the first layer has other parts than those behind it, which cannot take its place
        order = influence.influences(*read)[1:].argsort(descending=True, stable=True)
        kept = [1, *sorted(int(layer) + 2 for layer in order[: count - self.layers - 1])]
        return KeepLayers(kept).build(current, context)
