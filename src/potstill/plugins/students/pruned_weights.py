"""Set the smallest weights to zero, and keep them there in training (Han et al., 2015; Frankle and Carbin, 2019)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

from potstill.api import (
    BuildContext,
    Builder,
    Count,
    InputError,
    Share,
    Student,
    fisher,
    heads,
    held,
    masks,
    networks,
    quantized,
    reading,
    torch,
)

READ_OTHERWISE = ("QuestionAnswering", "MultipleChoice", "PreTraining")  # heads with several logits or texts


@dataclass(frozen=True)
class PrunedWeights(Builder):
    """sparsity: share of the weights of the layers' matrices that are zero afterwards. In a stage with `repeat`, a list has
    one for each round.
    scope: one threshold for all matrices, or the same share of each.
    criterion: the smallest weights go; or those with the smallest saliency, w²·F/2, by which the network's answers change in
    second order without them (LeCun et al., 1990; F: Theis et al., 2018, arXiv:1801.05787).
    texts: how many train texts are read for the saliency, one by one, without their labels.
    """

    sparsity: Share | list[Share] | tuple[Share, ...] = 0.5
    scope: Literal["global", "layer"] = "global"
    criterion: Literal["magnitude", "saliency"] = "magnitude"
    texts: Count = 256

    images = True

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
        measured = self._saliency(current, context) if self.criterion == "saliency" else weights
        before = {name: weight.detach() != 0 for name, weight in weights.items()}
        kept = masks.masks_of_sparsity(measured, before, self.sparsity_in(context.round), self.scope == "layer")
        config = copy.deepcopy(model.config)
        setattr(config, held.PRUNED, True)
        pruned = {name: weight.detach().masked_fill(~kept[name], 0.0) for name, weight in weights.items()}
        built = networks.stock_model(model, config, model.state_dict() | pruned)
        return Student(built, copy.deepcopy(current.tokenizer))

    def _saliency(self, current: Student, context: BuildContext) -> dict[str, torch.Tensor]:
        """w²·F/2 of every weight of the prunable matrices, in their shapes."""
        head = heads.head_of_class(type(current.model).__name__)
        if current.model.config.is_encoder_decoder or head in READ_OTHERWISE:
            raise InputError(
                "pruned_weights: the saliency is known for models that answer one text; write criterion = 'magnitude'"
            )
        instead = "give rows with text, or criterion = 'magnitude'"
        read = reading.reading_of("pruned_weights", current, context, self.texts, instead)
        weights = masks.prunable(read.student.model)
        found = fisher.diagonal_fisher(read.student, list(weights), read.texts, read.longest, context.seed)
        return {name: weight.detach() ** 2 * found[name] / 2 for name, weight in weights.items()}
