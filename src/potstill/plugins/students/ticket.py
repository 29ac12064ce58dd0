"""The search for winning tickets: prune and rewind, round by round (Frankle and Carbin, 2019, arXiv:1803.03635)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

from potstill.api import BuildContext, Builder, InputError, Share, Student, held, masks, tickets, torch, transformers


@dataclass(frozen=True)
class Ticket(Builder):
    """For a stage with `repeat`: before every round but the first, the smallest trained weights are removed, and the others
    get the weights again that the student had first, or at step `rewind`.

    removes: share of the weights that is removed before each of these rounds.
    of: that share of what remains, or of all weights.
    scope: one threshold for all matrices, or the same share of each.
    output: the task's head is pruned too, by half of the share.
    head: the task's head is rewound like the rest, goes on as it was trained, or gets new random weights.
    control: the same mask with random weights, or as many weights of each matrix at random places.
    """

    removes: Share = 0.2
    of: Literal["remaining", "all"] = "remaining"
    scope: Literal["global", "layer"] = "global"
    output: bool = False
    head: Literal["rewound", "trained", "fresh"] = "rewound"
    control: Literal["none", "random_weights", "random_structure"] = "none"

    images = True

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        inner = masks.prunable(model)
        if not inner:
            raise InputError(
                f"ticket: a {model.config.model_type} has no matrices between its input and its head; omit ticket"
            )
        every = masks.prunable(model, self.output)
        head = {name: weight for name, weight in every.items() if name not in inner}
        share, of_remaining = self.removes if context.round > 1 else 0.0, self.of == "remaining"
        kept = tickets.pruned_further(inner, share, of_remaining, self.scope == "layer")
        kept |= tickets.pruned_further(head, share / 2, of_remaining, True)
        if self.control == "random_structure":
            kept = masks.random_places(kept, context.seed)
        config = copy.deepcopy(model.config)
        setattr(config, held.PRUNED, True)
        setattr(config, held.OUTPUT, self.output)
        built = tickets.rewound(model, config, *self._sources(current, context))
        with torch.no_grad():
            for name, weight in masks.prunable(built, self.output).items():
                weight.masked_fill_(~kept[name], 0.0)
        return Student(built, copy.deepcopy(current.tokenizer))

    def _sources(
        self, current: Student, context: BuildContext
    ) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedModel]:
        """The models whose weights the encoder and the task's head get."""
        start = context.start.model
        if self.control == "random_weights" or self.head == "fresh":
            drawn = tickets.random_model(current.model, context.seed)
            return (drawn if self.control == "random_weights" else start), drawn
        return start, current.model if self.head == "trained" else start
