"""Read signals of a model (logits, [CLS], hidden states, attention) of the wanted layers only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.errors import InputError
from potstill.models.anatomy import architecture_name, encoder_layers, is_causal
from potstill.models.attention import INSTEAD, AttentionInputs, attention_inputs, eager_attention, side_by_side
from potstill.models.packing import Packing, head_at_places, packing_of, reads_places, separate_attention
from potstill.signals import Signals, View, Wants, nothing

# models whose head reads only the first token; the exact classes, because a subclass may read more
READ_THE_FIRST_TOKEN = (
    transformers.BertForMultipleChoice,
    transformers.BertForSequenceClassification,
    transformers.ElectraForSequenceClassification,
    transformers.RobertaForMultipleChoice,
    transformers.RobertaForSequenceClassification,
)

Project = Callable[[str, int, Tensor], Tensor]
"""Name of the signal, layer and states -> states in the width of the teacher."""


def listen(model: PreTrainedModel, view: View, wants: Wants, project: Project | None = None) -> Signals:
    """Return the wanted signals of one forward pass. What is not wanted costs nothing: no hook, no slower attention.

    [CLS] is the first token; in causal models, whose first token sees only itself, it is the last one before padding.
    """
    packing = packing_of(model, view, wants)
    states: dict[int, Tensor] = {}  # layer -> (batch, tokens, width), or (batch, width) where only [CLS] is wanted
    last = view.real.sum(1) - 1 if wants.cls and is_causal(model) else None  # (batch,)
    seen = partial(_seen, packing=packing, last=last)
    hooks = [_hook(model, layer, states, partial(seen, layer in wants.hidden)) for layer in {*wants.cls, *wants.hidden}]
    if not wants.hidden and (end := end_of_attention(model)) is not None:
        hooks.append(end.register_forward_pre_hook(lambda _, inputs: tuple(tensor[:, :1] for tensor in inputs)))
    eager, layers = bool(wants.probabilities), wants.projections
    inputs: dict[int, AttentionInputs] = {}
    try:
        with ExitStack() as stack:
            if eager:
                stack.enter_context(eager_attention(model))
            if layers:
                inputs = stack.enter_context(attention_inputs(model, layers))
            given = view.inputs
            if packing is not None:
                given = packing.inputs(model, given)
                stack.enter_context(separate_attention(model, packing))
            if reads_places(model):
                view = stack.enter_context(head_at_places(model, view, wants.logits, packing))
            heads, attention = head_outputs(model, given, eager)
    finally:
        for hook in hooks:
            hook.remove()
    if wants.logits and view.also_at.numel() and len(heads) < 2:
        raise InputError("the examples are read by two heads, and a model has one; use one for pre-training")
    project = project or (lambda name, layer, tensor: tensor)

    def stacked(layers: Sequence[int], of_layer: Callable[[int], Tensor]) -> Tensor:
        return torch.stack([of_layer(layer) for layer in layers], 1) if layers else nothing()

    return Signals(
        logits=view.predictions(*map(at_least_float32, heads)) if wants.logits else nothing(),
        cls=stacked(wants.cls, lambda layer: project("cls", layer, _cls(states[layer], last))),
        hidden=stacked(wants.hidden, lambda layer: project("hidden", layer, states[layer])),
        attention=stacked(wants.attention, lambda layer: attention[layer - 1].mean(1)),
        heads=stacked(wants.heads, lambda layer: attention[layer - 1]),
        scores=stacked(wants.scores, lambda layer: inputs[layer].scores),
        queries=stacked(wants.queries, lambda layer: side_by_side(inputs[layer].queries)),
        keys=stacked(wants.keys, lambda layer: side_by_side(inputs[layer].keys)),
        values=stacked(wants.values, lambda layer: side_by_side(inputs[layer].values)),
    )


def at_least_float32(numbers: Tensor) -> Tensor:
    """Sums over classes lose too much precision in half precision."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def head_outputs(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], attention: bool = False
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Map (batch, tokens) inputs to each head's (batch, outputs), or (batch, tokens, outputs) for heads over tokens.

    Models for pre-training have two heads: for masked tokens, and for whether the second text is the next one.
    With `attention` also return (batch, heads, tokens, tokens) of each layer.
    """
    if type(model).__name__.endswith("ForMultipleChoice"):  # each candidate is given as the only one of a question
        inputs = {name: tensor[:, None] for name, tensor in inputs.items()}
    if "decoder_targets" in inputs:
        inputs = with_decoder_inputs(inputs, int(model.config.decoder_start_token_id))
    output = model(**inputs, **({"output_attentions": True} if attention else {}))
    heads: tuple[Tensor, ...]
    if "logits" in output:
        heads = (output.logits,)
    elif "prediction_logits" in output:
        heads = (output.prediction_logits, output.seq_relationship_logits)
    else:
        heads = (torch.stack([output.start_logits, output.end_logits], -1),)
    if attention and not output.get("attentions"):  # without an error, transformers may return an empty tuple
        kind = architecture_name(model)
        raise InputError(f"a model of type {kind!r} does not return its attention probabilities; {INSTEAD}")
    return heads, output.attentions if attention else ()


def with_decoder_inputs(inputs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """Replace a decoder's targets by its inputs: the targets shifted right by one, after a start token."""
    others = {name: tensor for name, tensor in inputs.items() if name != "decoder_targets"}
    targets = inputs["decoder_targets"]
    shifted = torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], 1)
    return {**others, "decoder_input_ids": shifted, "use_cache": False}  # type: ignore[dict-item]


def end_of_attention(model: PreTrainedModel) -> nn.Module | None:
    """Return the module after the last layer's attention if the head reads only the first token; else None.

    From there on the other tokens are not needed. This is three quarters of a layer, a quarter of the work of a student
    with three layers.
    """
    if getattr(model, "stock", type(model)) not in READ_THE_FIRST_TOKEN:
        return None
    *others, last = encoder_layers(model)
    return last.get_submodule("attention.output") if last not in others else None


def _cls(states: Tensor, last: Tensor | None) -> Tensor:
    """(batch, tokens, width) -> (batch, width) of the token that represents the text."""
    if states.dim() == 2:
        return states
    return states[:, 0] if last is None else states[torch.arange(len(states), device=states.device), last]


def _seen(every_token: bool, states: Tensor, packing: Packing | None, last: Tensor | None) -> Tensor:
    """(batch, tokens, width), or (batch, width) of the token that represents the text, of a layer's states."""
    padded = states if packing is None else packing.unpack(states)
    return padded if every_token else _cls(padded, last)


def _hook(
    model: PreTrainedModel, layer: int, states: dict[int, Tensor], seen: Callable[[Tensor], Tensor]
) -> torch.utils.hooks.RemovableHandle:
    """Store the output of a layer in `states`; layer 0 is the input of the first."""

    layers = encoder_layers(model)
    module = layers[max(0, layer - 1)]
    turns = [place for place, one in enumerate(layers) if one is module]  # one, except where layers are shared
    turn, calls = turns.index(max(0, layer - 1)), itertools.count()

    def store(tensor: Tensor) -> None:
        if next(calls) % len(turns) == turn:
            states[layer] = seen(tensor)

    if layer == 0:

        def before(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            store(positional[0] if positional else named["hidden_states"])

        return module.register_forward_pre_hook(before, with_kwargs=True)

    def after(_: nn.Module, __: Any, output: Any) -> None:
        store(output if isinstance(output, Tensor) else output[0])

    return module.register_forward_hook(after)
