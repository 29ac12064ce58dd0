"""Drop the layers that change the states of the task's texts least (block influence: Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import islice

from potstill.api import BuildContext, Builder, Count, InputError, Pace, Student, anatomy, influence
from potstill.plugins.students.keep_layers import KeepLayers

LONGEST = 128  # tokens of a text that are read


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
        texts = list(islice(context.texts(), self.texts))
        if not texts:
            raise InputError("dropped_layers: there is no text to read; give rows with text")
        longest = min(LONGEST, anatomy.longest_input(current.model, current.tokenizer))
        copied = Student(copy.deepcopy(current.model).eval(), copy.deepcopy(current.tokenizer))
        # in several architectures the first layer has other parts than those behind it, which cannot take its place
        order = influence.influences(copied, texts, longest)[1:].argsort(descending=True, stable=True)
        kept = [1, *sorted(int(layer) + 2 for layer in order[: count - self.layers - 1])]
        return KeepLayers(kept).build(current, context)
