"""How much the answers of a network change with each weight: the diagonal of the Fisher information, from texts alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from potstill.models.builder import Student
from potstill.models.compression.reading import batches
from potstill.models.hooks import at_least_float32
from potstill.system.randomness import mix


def diagonal_fisher(
    student: Student, names: Collection[str], texts: Sequence[str], longest: int, seed: int
) -> dict[str, Tensor]:
    """By the name of a parameter, in its shape: Σ p(y)·(∂ log p(y)/∂w)² over the answers y that the network itself gives,
    the mean over the texts. Labels are not needed: it is the second derivative of KL(network ‖ network with other weights).

    One gradient per text instead of one per answer: of Σ ±√p(y)·log p(y) with signs at random, whose square has that mean.
    """
    model = student.model
    parameters = [model.get_parameter(name) for name in names]
    found = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    draw = torch.Generator().manual_seed(mix(seed, "fisher"))
    for number in range(len(texts)):
        (batch,) = batches(student, texts[number : number + 1], longest)
        logits = at_least_float32(model(**batch).logits)
        signs = (2 * torch.randint(2, logits.shape, generator=draw) - 1).to(logits)
        target = (signs * _answers(model, logits)).sum()
        gradients = torch.autograd.grad(target, parameters, allow_unused=True)
        for total, gradient in zip(found, gradients, strict=True):
            if gradient is not None:
                total += gradient.float() ** 2 / len(texts)
    return dict(zip(names, found, strict=True))


def _answers(model: PreTrainedModel, logits: Tensor) -> Tensor:
    """Of the shape of the logits: what is differentiated, so that the sum of its squared gradients is the information."""
    if model.config.problem_type == "regression" or logits.shape[-1] == 1:  # a normal distribution around the value
        return logits
    if model.config.problem_type == "multi_label_classification":  # p·(1 − p) of each label
        return logits * (logits.sigmoid() * (1 - logits.sigmoid())).sqrt().detach()
    likely = logits.log_softmax(-1)
    return likely * (likely / 2).exp().detach()
