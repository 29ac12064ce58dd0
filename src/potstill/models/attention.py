"""Read the attention of a model: its probabilities, and the queries, keys and values that its scores are made of."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from potstill.errors import InputError
from potstill.models.anatomy import architecture_name, encoder_layers

QUERIES = ("query", "q_lin", "q", "Wqkv")  # an attention module has one of these, depending on the architecture
NOT_IN_SCORES = (
    "position_bias",
    "softcap",
    "s_aux",
)  # arguments of attention functions that change the softmax otherwise
INSTEAD = "use a method that compares hidden states, such as 'hints'"


class AttentionInputs(NamedTuple):
    """What a layer computes its attention from. With grouped queries, several heads share one of keys and values."""

    queries: Tensor  # (batch, heads, tokens, width of a head)
    keys: Tensor
    values: Tensor
    scale: float

    @property
    def scores(self) -> Tensor:
        """(batch, heads, tokens, tokens) before the mask is added."""
        keys = self.keys.repeat_interleave(self.queries.shape[1] // self.keys.shape[1], 1)
        return self.queries @ keys.mT * self.scale


def configs(model: PreTrainedModel) -> list[Any]:
    """A further head has a config of its own, and its encoder another."""
    return [model.config, model.base_model.config]


def side_by_side(heads: Tensor) -> Tensor:
    """(batch, heads, tokens, width of a head) -> (batch, tokens, width)."""
    return heads.transpose(1, 2).flatten(2)


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention without fused kernels, which do not return its probabilities, and without dropout on them.

    With dropout, the attention of a network would differ from that of the very same network.
    """
    changes: list[tuple[Any, str, Any]] = [(config, "_attn_implementation", "eager") for config in configs(model)]
    for module in model.modules():
        if any(hasattr(module, name) for name in QUERIES):
            changes += [(child, "p", 0.0) for child in module.children() if isinstance(child, nn.Dropout)]
            if isinstance(vars(module).get("attention_dropout"), float):
                changes.append((module, "attention_dropout", 0.0))
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)


Attend = Callable[..., Any]
"""transformers' attention function: module, queries, keys, values and mask -> (batch, tokens, heads, width of a head), weights."""


def attend(function: Attend | None, module: nn.Module) -> Attend:
    """The function itself. None: "eager" is not registered, since each architecture has its own."""
    return function or sys.modules[type(module).__module__].eager_attention_forward


@contextmanager
def other_attention(kinds: Collection[str], wrapped: Callable[[Attend | None], Attend]) -> Iterator[None]:
    """Put another function around transformers' attention functions of these kinds."""
    before = {kind: ALL_ATTENTION_FUNCTIONS.get(kind) for kind in kinds}
    try:
        for kind, function in before.items():
            ALL_ATTENTION_FUNCTIONS[kind] = wrapped(function)
        yield
    finally:
        for kind, function in before.items():
            del ALL_ATTENTION_FUNCTIONS[kind]
            if ALL_ATTENTION_FUNCTIONS.get(kind) is not function:  # it was wrapped already
                ALL_ATTENTION_FUNCTIONS[kind] = function


@contextmanager
def attention_inputs(model: PreTrainedModel, layers: Collection[int]) -> Iterator[dict[int, AttentionInputs]]:
    """Fill the yielded dictionary with what these layers (from 1) give to transformers' attention function.

    There all architectures that use it are alike, whether their projections are fused, grouped or rotated. The function
    itself runs as before. Architectures with an attention of their own are refused.
    """
    found: dict[int, AttentionInputs] = {}
    of_module: dict[int, list[int]] = {}  # the layers that a module is part of: one, except where layers are shared
    for layer, module in enumerate(encoder_layers(model), start=1):
        for part in module.modules():
            of_module.setdefault(id(part), []).append(layer)
    calls: Counter[int] = Counter()

    def recording(function: Callable[..., Any] | None) -> Callable[..., Any]:
        def record(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Any:
            uses = of_module.get(id(module), [0])
            layer = uses[calls[id(module)] % len(uses)]
            calls[id(module)] += 1
            if layer in layers:
                if others := [name for name in NOT_IN_SCORES if named.get(name) is not None]:
                    raise no_scores(model, f"adds {others[0]!r} to them")
                scaling = named.get("scaling")
                found[layer] = AttentionInputs(
                    query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling
                )
            return attend(function, module)(module, query, key, value, *more, **named)

        return record

    with other_attention({config._attn_implementation for config in configs(model)}, recording):
        yield found
    if len(found) < len(set(layers)):
        raise no_scores(model, "computes them in its own way")


def no_scores(model: PreTrainedModel, reason: str) -> InputError:
    kind = architecture_name(model)
    return InputError(f"a model of type {kind!r} does not give its attention scores: it {reason}; {INSTEAD}")
