"""How much each layer of a network changes the states of tokens (block influence: Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from potstill.models.anatomy import layer_count
from potstill.models.builder import Student
from potstill.models.compression.reading import batches
from potstill.models.hooks import listen
from potstill.signals import View, Wants


def influences(student: Student, texts: Sequence[str], longest: int) -> Tensor:
    """(layers,): 1 − cos(a token's state before the layer, and after it), the mean over the tokens of the texts."""
    model, layers = student.model, layer_count(student.model)
    total, tokens = torch.zeros(layers, dtype=torch.float64), 0
    wants = Wants(hidden=tuple(range(layers + 1)))
    with torch.inference_mode():
        for batch in batches(student, texts, longest):
            real = batch["attention_mask"].bool()
            at = torch.zeros(len(real), 2, dtype=torch.long, device=model.device)
            states = listen(
                model, View(dict(batch), real, at), wants
            ).hidden.double()  # (batch, layers + 1, tokens, width)
            alike = nn.functional.cosine_similarity(states[:, :-1], states[:, 1:], dim=-1)  # (batch, layers, tokens)
            total += ((1 - alike) * real[:, None]).sum((0, 2)).cpu()
            tokens += int(real.sum())
    return total / tokens
