"""Layers that change nothing go first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potstill.errors import InputError
from potstill.models.anatomy import encoder_layers, layer_count
from potstill.models.builder import BuildContext, Student
from potstill.models.compression.influence import influences
from potstill.plugins.students.dropped_layers import DroppedLayers
from potstill.plugins.students.keep_layers import KeepLayers
from tests.support.small_models import ARCHITECTURES, logits, same_weights, sentences, small_model, small_writer

TEXTS = [text for text, _ in sentences(20, seed=1)]


def context(start: Student, texts: list[str] = TEXTS) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(texts))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_influence_is_one_less_the_cosine_over_a_layer(architecture: str) -> None:
    """Against hooks on single texts, which have no padding."""
    start = small_model(architecture, layers=2)
    found = influences(start, TEXTS, 64)
    states: list[list[torch.Tensor]] = [[], [], []]

    def before(_: nn.Module, positional: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        states[0].append((positional[0] if positional else named["hidden_states"])[0])

    hooks = [encoder_layers(start.model)[0].register_forward_pre_hook(before, with_kwargs=True)]
    for number, layer in enumerate(encoder_layers(start.model), start=1):

        def after(_: nn.Module, __: object, output: object, number: int = number) -> None:
            states[number].append((output if isinstance(output, torch.Tensor) else output[0])[0])  # type: ignore[index]

        hooks.append(layer.register_forward_hook(after))
    with torch.inference_mode():
        for text in TEXTS:
            start.model(**start.tokenizer(text, return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    whole = [torch.cat(layer).double() for layer in states]  # (tokens, width)
    for number in (0, 1):
        expected = 1 - nn.functional.cosine_similarity(whole[number], whole[number + 1], dim=-1).mean()
        torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-6)


def test_a_layer_that_changes_nothing_is_dropped_and_the_answers_stay() -> None:
    start = small_model("bert")
    with torch.no_grad():
        for layer in (encoder_layers(start.model)[number] for number in (1, 2)):
            for name in ("attention.output.dense", "output.dense"):
                layer.get_submodule(name).weight.zero_()
                layer.get_submodule(name).bias.zero_()
    built = DroppedLayers(2).build(start, context(start))
    assert layer_count(built.model) == 2
    assert same_weights(built, KeepLayers([1, 4]).build(start, context(start)))
    # a layer without its parts still normalises what is normalised already
    torch.testing.assert_close(logits(built, TEXTS), logits(start, TEXTS), rtol=0, atol=1e-4)


def test_what_cannot_be_dropped_is_refused() -> None:
    start = small_model("bert", layers=2)
    with pytest.raises(InputError, match="write at most 1"):
        DroppedLayers(2).build(start, context(start))
    with pytest.raises(InputError, match="no text"):
        DroppedLayers(1).build(start, context(start, []))
    with pytest.raises(InputError, match="keep_layers:3"):
        DroppedLayers(1).build(small_writer("marian"), context(start))
