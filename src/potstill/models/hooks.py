"""Read signals of a model (logits, [CLS], hidden states, attention) by forward hooks on the wanted layers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.models.anatomy import encoder_layers, is_causal
from potstill.signals import Signals, View, Wants, nothing

# models whose head reads only the first token; the exact classes, because a subclass may read more
READ_THE_FIRST_TOKEN = (
    transformers.BertForMultipleChoice,
    transformers.BertForSequenceClassification,
    transformers.ElectraForSequenceClassification,
    transformers.RobertaForMultipleChoice,
    transformers.RobertaForSequenceClassification,
)
QUERIES = ("query", "q_lin", "q", "Wqkv")  # an attention module has one of these, depending on the architecture

Project = Callable[[str, int, Tensor], Tensor]
"""Name of the signal, layer and states -> states in the width of the teacher."""


def listen(model: PreTrainedModel, view: View, wants: Wants, project: Project | None = None) -> Signals:
    """Return the wanted signals of one forward pass.

    [CLS] is the first token; in causal models, whose first token sees only itself, it is the last one before padding.
    """
    states: dict[int, Tensor] = {}  # layer -> (batch, tokens, width), or (batch, width) where only [CLS] is wanted
    last = view.real.sum(1) - 1 if wants.cls and is_causal(model) else None  # (batch,)
    hooks = [_hook(model, layer, states, layer in wants.hidden, last) for layer in {*wants.cls, *wants.hidden}]
    if not wants.hidden and (end := end_of_attention(model)) is not None:
        hooks.append(end.register_forward_pre_hook(lambda _, inputs: tuple(tensor[:, :1] for tensor in inputs)))
    try:
        with eager_attention(model) if wants.attention else nullcontext():
            outputs, attention = head_outputs(model, view.inputs, bool(wants.attention))
    finally:
        for hook in hooks:
            hook.remove()
    project = project or (lambda name, layer, tensor: tensor)
    return Signals(
        logits=view.predictions(at_least_float32(outputs)) if wants.logits else nothing(),
        cls=torch.stack([project("cls", n, _cls(states[n], last)) for n in wants.cls], 1) if wants.cls else nothing(),
        hidden=torch.stack([project("hidden", n, states[n]) for n in wants.hidden], 1) if wants.hidden else nothing(),
        attention=torch.stack([attention[n - 1].mean(1) for n in wants.attention], 1) if wants.attention else nothing(),
    )


def at_least_float32(numbers: Tensor) -> Tensor:
    """Sums over classes lose too much precision in half precision."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def head_outputs(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], attention: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Map (batch, tokens) inputs to (batch, outputs), or to (batch, tokens, outputs) for heads over tokens.

    With `attention` also return (batch, heads, tokens, tokens) of each layer.
    """
    if type(model).__name__.endswith("ForMultipleChoice"):  # each candidate is given as the only one of a question
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    if "decoder_targets" in inputs:
        inputs = with_decoder_inputs(inputs, int(model.config.decoder_start_token_id))
    output = model(**inputs, **({"output_attentions": True} if attention else {}))
    logits = output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], -1)
    return logits, output.attentions if attention else ()


def with_decoder_inputs(inputs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """Replace a decoder's targets by its inputs: the targets shifted right by one, after a start token."""
    others = {name: tensor for name, tensor in inputs.items() if name != "decoder_targets"}
    targets = inputs["decoder_targets"]
    shifted = torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], 1)
    return {**others, "decoder_input_ids": shifted, "use_cache": False}  # type: ignore[dict-item]


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention without fused kernels, which do not return its probabilities, and without dropout on them.

    With dropout, the attention of a network would differ from that of the very same network.
    """
    # a further head has a config of its own, and its encoder another
    changes: list[tuple[Any, str, Any]] = [
        (config, "_attn_implementation", "eager") for config in (model.config, model.base_model.config)
    ]
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


def end_of_attention(model: PreTrainedModel) -> nn.Module | None:
    """Return the module after the last layer's attention if the head reads only the first token; else None.

    From there on the other tokens are not needed. This is three quarters of a layer, a quarter of the work of a student
    with three layers.
    """
    if type(model) not in READ_THE_FIRST_TOKEN:
        return None
    *others, last = encoder_layers(model)
    return last.get_submodule("attention.output") if last not in others else None


def _cls(states: Tensor, last: Tensor | None) -> Tensor:
    """(batch, tokens, width) -> (batch, width) of the token that represents the text."""
    if states.dim() == 2:
        return states
    return states[:, 0] if last is None else states[torch.arange(len(states), device=states.device), last]


def _hook(
    model: PreTrainedModel, layer: int, states: dict[int, Tensor], every_token: bool, last: Tensor | None
) -> torch.utils.hooks.RemovableHandle:
    """Store the output of a layer in `states`; layer 0 is the input of the first."""

    def store(tensor: Tensor) -> None:
        states[layer] = tensor if every_token else _cls(tensor, last)

    layers = encoder_layers(model)
    if layer == 0:

        def before(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            store(positional[0] if positional else named["hidden_states"])

        return layers[0].register_forward_pre_hook(before, with_kwargs=True)

    def after(_: nn.Module, __: Any, output: Any) -> None:
        store(output if isinstance(output, Tensor) else output[0])

    return layers[layer - 1].register_forward_hook(after)
