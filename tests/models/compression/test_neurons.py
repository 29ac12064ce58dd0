"""Networks without some of their feed-forward neurons: which go, and what the others compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from potstill.errors import InputError
from potstill.models.builder import BuildContext, Student
from potstill.models.compression import neurons
from potstill.plugins.students.pruned_neurons import PrunedNeurons
from tests.support.small_models import logits, sentences, small_model, small_writer

TEXTS = [text for text, _ in sentences(40, seed=1)]
ARCHITECTURES = PrunedNeurons.architectures


def context(start: Student, texts: list[str] = TEXTS) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(texts))


def numbers(student: Student) -> int:
    return sum(parameter.numel() for parameter in student.model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_matrices_are_really_smaller(architecture: str) -> None:
    start = small_model(architecture, layers=2)
    built = PrunedNeurons(0.75).build(start, context(start))
    field = neurons.size_field(start.model)
    assert field is not None
    before, after = getattr(start.model.config, field), getattr(built.model.config, field)
    assert after == before // 4
    width = start.model.config.hidden_size
    assert numbers(start) - numbers(built) == 2 * (before - after) * (2 * width + 1)
    for place in neurons.feed_forwards(built.model) or []:
        assert built.model.get_submodule(place.inner).weight.shape == (after, width)
        assert built.model.get_submodule(place.outer).weight.shape == (width, after)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_removing_any_nothing_changes(architecture: str) -> None:
    start = small_model(architecture, layers=2)
    assert torch.equal(logits(PrunedNeurons(0.0).build(start, context(start)), TEXTS[:4]), logits(start, TEXTS[:4]))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_neurons_that_give_a_constant_go_first_and_change_nothing(architecture: str) -> None:
    """Half of the neurons of each layer get no input but a bias: their part of the output is a constant, which stays."""
    start = small_model(architecture, layers=2)
    constant: dict[str, Tensor] = {}
    with torch.no_grad():
        for number, place in enumerate(neurons.feed_forwards(start.model) or []):
            inner, outer = (start.model.get_submodule(name) for name in (place.inner, place.outer))
            draw = torch.Generator().manual_seed(number)
            constant[place.inner] = torch.randperm(len(inner.weight), generator=draw)[::2]
            inner.weight[constant[place.inner]] = 0
            inner.bias[constant[place.inner]] = 1.5
            outer.weight *= 4  # so that it would be seen
    built = PrunedNeurons(0.5).build(start, context(start))
    torch.testing.assert_close(logits(built, TEXTS), logits(start, TEXTS), rtol=0, atol=2e-5)
    for place in neurons.feed_forwards(start.model) or []:
        rows = start.model.get_submodule(place.inner).weight
        kept = torch.ones(len(rows), dtype=torch.bool)
        kept[constant[place.inner]] = False
        assert torch.equal(built.model.get_submodule(place.inner).weight, rows[kept])


def test_importance_is_what_the_output_loses() -> None:
    """One layer by hand: each neuron is set to its mean, and the output compared."""
    start = small_model("bert", layers=1)
    (place,) = neurons.feed_forwards(start.model) or []
    (activity,) = neurons.activities(start, [place], TEXTS, 64)
    seen: list[Tensor] = []
    outer = start.model.get_submodule(place.outer)
    assert isinstance(outer, nn.Linear)
    hook = outer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for text in TEXTS:  # one by one: there is no padding
        with torch.inference_mode():
            start.model(**start.tokenizer(text, return_tensors="pt"))
    hook.remove()
    given = torch.cat([batch[0] for batch in seen]).double()  # (tokens, neurons)
    assert activity.tokens == len(given)
    torch.testing.assert_close(activity.mean, given.mean(0), rtol=1e-4, atol=1e-6)
    found = neurons.importance(start.model, place, activity)
    for neuron in range(0, given.shape[1], 7):
        without = given.clone()
        without[:, neuron] = given[:, neuron].mean()
        change = ((given - without) @ outer.weight.detach().double().T).square().sum(1).mean()
        torch.testing.assert_close(found[neuron], change, rtol=1e-3, atol=1e-9)


def test_the_most_important_are_kept_and_the_texts_decide() -> None:
    start = small_model("bert", layers=1)
    first, second = (PrunedNeurons(0.5).build(start, context(start, texts)) for texts in (TEXTS[:3], TEXTS[3:6]))
    again = PrunedNeurons(0.5).build(start, context(start, TEXTS[:3]))
    inner = "bert.encoder.layer.0.intermediate.dense.weight"
    weights = [built.model.get_parameter(inner) for built in (first, second, again)]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])


def test_what_has_other_layers_is_refused() -> None:
    for student in (small_model("modernbert"), small_writer("gpt2")):
        with pytest.raises(InputError, match=r"pruned_neurons: .*; omit pruned_neurons"):
            PrunedNeurons().build(student, context(student))
    start = small_model("bert", layers=1)
    with pytest.raises(InputError, match="no text"):
        PrunedNeurons().build(start, context(start, []))
