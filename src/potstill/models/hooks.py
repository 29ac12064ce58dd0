"""Ask a model for signals, by hooks on the wanted layers alone: nothing else is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertForMultipleChoice,
    BertForSequenceClassification,
    ElectraForSequenceClassification,
    PreTrainedModel,
    RobertaForMultipleChoice,
    RobertaForSequenceClassification,
)

from potstill.models.anatomy import encoder_layers, is_causal
from potstill.signals import Signals, View, Wants, nothing

# the exact classes: one that inherits may read more
READ_THE_FIRST_TOKEN = (
    BertForMultipleChoice,
    BertForSequenceClassification,
    ElectraForSequenceClassification,
    RobertaForMultipleChoice,
    RobertaForSequenceClassification,
)
QUERIES = ("query", "q_lin", "q", "Wqkv")  # what the modules have that attend, by architecture

Project = Callable[[str, int, Tensor], Tensor]
"""Name of the signal, layer and states -> states in the width of the teacher."""


def listen(model: PreTrainedModel, view: View, wants: Wants, project: Project | None = None) -> Signals:
    """The signals of one forward pass. [CLS] is the first token; of causal models, whose first token sees itself alone, the
    last one that is no padding."""
    heard: dict[int, Tensor] = {}  # layer -> (batch, tokens, width), or (batch, width) where only [CLS] is wanted
    last = view.real.sum(1) - 1 if wants.cls and is_causal(model) else None  # (batch,)
    hooks = [_hear(model, layer, heard, layer in wants.hidden, last) for layer in {*wants.cls, *wants.hidden}]
    if not wants.hidden and (end := end_of_attention(model)) is not None:
        hooks.append(end.register_forward_pre_hook(lambda _, states: tuple(one[:, :1] for one in states)))
    try:
        with attention_told(model) if wants.attention else nullcontext():
            heads, attention = ask(model, view.inputs, bool(wants.attention))
    finally:
        for hook in hooks:
            hook.remove()
    project = project or (lambda name, layer, states: states)
    return Signals(
        logits=view.predictions(exact(heads)) if wants.logits else nothing(),
        cls=torch.stack([project("cls", n, _cls(heard[n], last)) for n in wants.cls], 1) if wants.cls else nothing(),
        hidden=torch.stack([project("hidden", n, heard[n]) for n in wants.hidden], 1) if wants.hidden else nothing(),
        attention=torch.stack([attention[n - 1].mean(1) for n in wants.attention], 1) if wants.attention else nothing(),
    )


def exact(numbers: Tensor) -> Tensor:
    """In float32 at least: sums over classes lose too much in half precision."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def ask(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], attention: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What a head gives for (batch, tokens): (batch, outputs), or (batch, tokens, outputs) where it reads every token.

    With `attention` also each layer's (batch, heads, tokens, tokens).
    """
    if type(model).__name__.endswith("ForMultipleChoice"):  # each candidate as the only one of a question
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    if "decoder_targets" in inputs:
        inputs = begun(inputs, int(model.config.decoder_start_token_id))
    said = model(**inputs, **({"output_attentions": True} if attention else {}))
    heads = said.logits if "logits" in said else torch.stack([said.start_logits, said.end_logits], -1)
    return heads, said.attentions if attention else ()


def begun(inputs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """The targets of a decoder as what it reads: each token stands where the next one is predicted, after a start."""
    given = {name: tensor for name, tensor in inputs.items() if name != "decoder_targets"}
    targets = inputs["decoder_targets"]
    first = torch.full_like(targets[:, :1], start)
    return {**given, "decoder_input_ids": torch.cat([first, targets[:, :-1]], 1), "use_cache": False}  # type: ignore[dict-item]


@contextmanager
def attention_told(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model computes its attention step by step: the fused kernels keep its probabilities to themselves.

    Nothing of them is dropped: dropout would make them unlike those of the very same network.
    """
    configs: tuple[Any, Any] = (
        model.config,
        model.base_model.config,
    )  # a further head has a config of its own, its encoder another
    kinds = [config._attn_implementation for config in configs]
    found = [module for module in model.modules() if any(hasattr(module, name) for name in QUERIES)]
    dropouts = [child for module in found for child in module.children() if isinstance(child, nn.Dropout)]
    rates = [
        (module, module.attention_dropout)
        for module in found
        if isinstance(vars(module).get("attention_dropout"), float)
    ]
    shares = [dropout.p for dropout in dropouts]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        for dropout in dropouts:
            dropout.p = 0.0
        for module, _ in rates:
            module.attention_dropout = 0.0  # type: ignore[assignment]
        yield
    finally:
        for config, kind in zip(configs, kinds, strict=True):
            config._attn_implementation = kind
        for dropout, share in zip(dropouts, shares, strict=True):
            dropout.p = share
        for module, rate in rates:
            module.attention_dropout = rate


def end_of_attention(model: PreTrainedModel) -> nn.Module | None:
    """Where the last layer needs the first token alone: after its attention, in models whose head reads nothing else.

    What follows there is three quarters of a layer, and of three layers that is a quarter of all work.
    """
    if type(model) not in READ_THE_FIRST_TOKEN:
        return None
    *others, last = encoder_layers(model)
    return last.get_submodule("attention.output") if last not in others else None


def _cls(states: Tensor, last: Tensor | None) -> Tensor:
    """(batch, tokens, width) -> (batch, width) of the token that stands for the whole text."""
    if states.dim() == 2:
        return states
    return states[:, 0] if last is None else states[torch.arange(len(states), device=states.device), last]


def _hear(
    model: PreTrainedModel, layer: int, heard: dict[int, Tensor], whole: bool, last: Tensor | None
) -> torch.utils.hooks.RemovableHandle:
    def keep(states: Tensor) -> None:
        heard[layer] = states if whole else _cls(states, last)

    stack = encoder_layers(model)
    if layer == 0:

        def before(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            keep(positional[0] if positional else named["hidden_states"])

        return stack[0].register_forward_pre_hook(before, with_kwargs=True)

    def after(_: nn.Module, __: Any, output: Any) -> None:
        keep(output if isinstance(output, Tensor) else output[0])

    return stack[layer - 1].register_forward_hook(after)
