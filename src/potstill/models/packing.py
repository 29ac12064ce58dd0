"""What a masked language model need not compute: padding, and the head where nobody reads it.

The texts of a batch are laid end to end in one row, without padding. Positions begin again with each text, and attention stays
within it (block-diagonal attention): the outputs are those of the padded batch, up to rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from potstill.models.anatomy import architecture_name, is_spread, position_offset
from potstill.models.attention import Attend, attend, other_attention
from potstill.signals import View, Wants

# they add learned positions to the embeddings, and leave attention to transformers' function
PACKABLE = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")
WORTH = 0.04  # share of padding from which leaving it out saves more than it costs


def reads_places(model: PreTrainedModel) -> bool:
    """Whether the model's head is over tokens and is read at a few of them."""
    name = type(model).__name__
    two_heads = name.endswith("ForPreTraining") and hasattr(model, "cls")  # ELECTRA's has another head
    return (name.endswith("ForMaskedLM") or two_heads) and not is_spread(model)


@dataclass(frozen=True)
class Packing:
    """Where the real tokens of a padded batch are."""

    real: Tensor  # (batch, tokens) bool
    places: Tensor  # (real tokens,) place of each among all
    numbers: Tensor  # (batch · tokens,) which real token a place has; 0 in padding

    @classmethod
    def of(cls, real: Tensor) -> Packing:
        flat = real.flatten()
        return cls(real, flat.nonzero()[:, 0], (flat.cumsum(0) - 1).masked_fill(~flat, 0))

    def pack(self, padded: Tensor) -> Tensor:
        """(batch, tokens, …) -> (1, real tokens, …)."""
        packed: Tensor = _Take.apply(padded.flatten(0, 1), self.places, self.numbers, self.real.flatten())
        return packed[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """(1, real tokens, …) -> (batch, tokens, …); in padding a finite number that nobody may read."""
        padded: Tensor = _Take.apply(packed[0], self.numbers, self.places, None)
        return padded.unflatten(0, self.real.shape)

    def inputs(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The arguments of `forward` for one row of all real tokens."""
        packed = {name: self.pack(tensor) for name, tensor in inputs.items() if name != "attention_mask"}
        positions = (self.real.cumsum(1) - 1)[self.real] + position_offset(model)
        packed["position_ids"] = positions[None]
        if "token_type_ids" in inspect.signature(model.forward).parameters:
            packed.setdefault("token_type_ids", torch.zeros_like(packed["input_ids"]))
        return packed


class _Take(torch.autograd.Function):
    """Rows by their places. Its gradient takes them back by the inverse, where index_select would add them up one by one."""

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor, back: Tensor, real: Tensor | None) -> Tensor:
        context.back, context.real = back, real
        return rows.index_select(0, places)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        taken = gradients[0].index_select(0, context.back)
        if context.real is not None:  # nothing flows into padding
            taken = taken.masked_fill_(~context.real.view(-1, *[1] * (taken.dim() - 1)), 0.0)
        return taken, None, None, None


def packing_of(model: PreTrainedModel, view: View, wants: Wants) -> Packing | None:
    """How to pack a batch; None where it has little padding, or the model or what is asked of it does not allow it."""
    if not reads_places(model) or architecture_name(model) not in PACKABLE or wants.probabilities:
        return None
    if kind_of_attention(model) != "sdpa":  # other kinds make a mask of all pairs of tokens
        return None
    padding = 1 - float(view.real.float().mean())
    return Packing.of(view.real) if padding > WORTH else None


def kind_of_attention(model: PreTrainedModel) -> str:
    config: Any = model.base_model.config
    return str(config._attn_implementation)


@contextmanager
def separate_attention(model: PreTrainedModel, packing: Packing) -> Iterator[None]:
    """Let each text of a packed row attend to itself alone."""
    mask = packing.real[:, None, None, :]  # (batch, 1, 1, keys)

    def separate(function: Attend | None) -> Attend:
        def within_texts(
            module: Any, query: Tensor, key: Tensor, value: Tensor, _: Any, *more: Any, **named: Any
        ) -> tuple[Tensor, Any]:
            padded = (packing.unpack(heads.transpose(1, 2)).transpose(1, 2) for heads in (query, key, value))
            found, weights = attend(function, module)(module, *padded, mask, *more, **named)
            return packing.pack(found), weights

        return within_texts

    with other_attention({kind_of_attention(model)}, separate):
        yield


@contextmanager
def head_at_places(model: PreTrainedModel, view: View, wanted: bool, packing: Packing | None) -> Iterator[View]:
    """Let the head compute nothing but what is read: yields the view of its (1, places, vocabulary) logits.

    With a vocabulary of 30,000, the head of three layers of 384 is two thirds of the work. `wanted`: otherwise none is read.
    """
    at = view.at if wanted else view.at[:0]
    rows = at[:, 0] * view.real.shape[1] + at[:, 1]
    if packing is not None:
        rows = packing.numbers[rows]

    def narrow(_: Any, __: Any, output: Any) -> Any:
        output["last_hidden_state"] = output[0].flatten(0, 1)[rows][None]
        return output

    hooks = [model.base_model.register_forward_hook(narrow)]
    pooler = getattr(model.base_model, "pooler", None)
    if packing is not None and pooler is not None:  # it reads the first token of each text
        firsts = packing.numbers.view(packing.real.shape)[:, :1]
        hooks.append(pooler.register_forward_pre_hook(lambda _, states: states[0][0][firsts]))
    try:
        yield replace(view, at=torch.stack([torch.zeros_like(rows), torch.arange(len(rows), device=rows.device)], 1))
    finally:
        for hook in hooks:
            hook.remove()
