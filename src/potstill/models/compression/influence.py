"""How much each layer of a network changes the states of tokens (block influence: Men et al., 2024, arXiv:2403.03853)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from potstill.models.anatomy import layer_count
from potstill.models.builder import Student
from potstill.models.hooks import listen
from potstill.signals import View, Wants

BATCH = 16  # texts that are read at once


def influences(student: Student, texts: Sequence[str], longest: int) -> Tensor:
    """(layers,): 1 − cos(a token's state before the layer, and after it), the mean over the tokens of the texts."""
    model, layers = student.model, layer_count(student.model)
    total, tokens = torch.zeros(layers, dtype=torch.float64), 0
    wants = Wants(hidden=tuple(range(layers + 1)))
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            some = list(texts[start : start + BATCH])
            batch = student.tokenizer(some, padding=True, truncation=True, max_length=longest, return_tensors="pt")
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
            real = inputs["attention_mask"].bool()
            at = torch.zeros(len(some), 2, dtype=torch.long, device=model.device)
            states = listen(model, View(inputs, real, at), wants).hidden.double()  # (batch, layers + 1, tokens, width)
            alike = nn.functional.cosine_similarity(states[:, :-1], states[:, 1:], dim=-1)  # (batch, layers, tokens)
            total += ((1 - alike) * real[:, None]).sum((0, 2)).cpu()
            tokens += int(real.sum())
    return total / tokens
