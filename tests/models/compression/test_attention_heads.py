"""Networks without some of their attention heads: which go, and what the others compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potstill.errors import InputError
from potstill.models.architectures.reshaped import ReshapedModel
from potstill.models.builder import BuildContext, Student
from potstill.models.compression import attention_heads, linear_maps
from potstill.models.hooks import listen
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import load_student, save_student
from potstill.plugins.students.low_rank import LowRank
from potstill.plugins.students.pruned_heads import PrunedHeads
from potstill.recipe import plugins
from potstill.signals import View, Wants
from potstill.training.loop import train
from tests.support.small_models import logits, same_weights, sentences, small_model, small_writer
from tests.support.training_world import CASES, World, make_world, stopped_and_resumed

TEXTS = [text for text, _ in sentences(40, seed=1)]
ARCHITECTURES = PrunedHeads.architectures


def context(start: Student, texts: list[str] = TEXTS) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(texts))


def small(architecture: str, layers: int = 2) -> Student:
    return small_writer(architecture, layers) if architecture == "llama" else small_model(architecture, layers)


def attentions(student: Student) -> list[attention_heads.Attention]:
    found = attention_heads.attentions(student.model)
    assert found is not None
    return found


def numbers(student: Student) -> int:
    return sum(parameter.numel() for parameter in student.model.parameters())


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "llama"])
def test_the_matrices_are_really_smaller(architecture: str, tmp_path: Path) -> None:
    """Of heads of 8; Llama's config can say it, so that it stays a stock model, and two of its heads share their keys."""
    start = small(architecture)
    built = PrunedHeads(0.5).build(start, context(start))
    before, after = attentions(start), attentions(built)
    grouped = architecture == "llama"
    assert [place.heads for place in before] == [2 if grouped else 4] * 2
    assert [place.heads for place in after] == [1 if grouped else 2] * 2
    biases = {"llama": 0, "modernbert": 0}.get(architecture, 3 * 16)
    assert numbers(start) - numbers(built) == 2 * ((3 if grouped else 4) * 16 * 32 + biases)
    assert isinstance(built.model, ReshapedModel) != grouped
    assert grouped or built.model.config.model_type == f"potstill-{architecture}"
    if grouped:
        config = built.model.config
        assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 1, 8)
    save_student(built, tmp_path / "student")
    again = load_student(tmp_path / "student")
    assert same_weights(again, built)
    assert torch.equal(logits(again, TEXTS), logits(built, TEXTS))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "llama"])
def test_without_removing_any_nothing_changes(architecture: str) -> None:
    start = small(architecture)
    built = PrunedHeads(0.0).build(start, context(start))
    assert torch.equal(logits(built, TEXTS[:4]), logits(start, TEXTS[:4]))
    assert built.model.config.model_type == architecture


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_that_give_a_constant_go_first_and_change_nothing(architecture: str) -> None:
    """Two of the heads of each layer have values that are only a bias: their part of the output is a constant, which stays.
    Without biases they give 0."""
    start = small_model(architecture, layers=2)
    kept: list[list[int]] = []
    with torch.no_grad():
        for number, place in enumerate(attentions(start)):
            values, outer = (start.model.get_submodule(name) for name in (place.inner[-1], place.outer))
            draw = torch.Generator().manual_seed(number)
            constant = torch.randperm(place.heads, generator=draw)[:2]
            place.rows(values.weight)[-1, constant] = 0
            if values.bias is not None:
                place.rows(values.bias)[-1, constant] = 1.5
            outer.weight *= 4  # so that it would be seen
            kept.append(sorted(set(range(place.heads)) - set(constant.tolist())))
    built = PrunedHeads(0.5).build(start, context(start))
    torch.testing.assert_close(logits(built, TEXTS), logits(start, TEXTS), rtol=0, atol=5e-5)
    for place, heads in zip(attentions(start), kept, strict=True):
        for name in place.inner:
            rows = place.rows(start.model.get_submodule(name).weight)[:, heads].flatten(0, 2)
            assert torch.equal(built.model.get_submodule(name).weight, rows)


def test_importance_is_what_the_output_loses() -> None:
    """One layer by hand: each head gives its mean, and the outputs are compared."""
    start = small_model("bert", layers=1)
    (place,) = attentions(start)
    given = linear_maps.moments_of(start, [place.outer], TEXTS, 64, of_inputs=True)[place.outer]
    found = attention_heads.importance(place, start.model.state_dict(), given)
    seen: list[Tensor] = []
    outer = start.model.get_submodule(place.outer)
    assert isinstance(outer, nn.Linear)
    hook = outer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    for text in TEXTS:  # one by one: there is no padding
        with torch.inference_mode():
            start.model(**start.tokenizer(text, return_tensors="pt"))
    hook.remove()
    read = torch.cat(seen).double()  # (tokens, heads · width)
    for head in range(place.heads):
        without, columns = read.clone(), slice(head * place.width, (head + 1) * place.width)
        without[:, columns] = read[:, columns].mean(0)
        change = ((read - without) @ outer.weight.detach().double().T).square().sum(1).mean()
        torch.testing.assert_close(found[head], change, rtol=1e-3, atol=1e-9)


def test_all_methods_see_its_heads_and_states() -> None:
    start = small_model("bert", layers=2)
    built = PrunedHeads(0.5).build(start, context(start))
    batch = built.tokenizer(TEXTS[:3], padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    view = View(dict(batch), real, torch.tensor([[0, 0], [1, 0], [2, 0]]))
    signals = listen(built.model, view, Wants(logits=True, heads=(1, 2), scores=(2,), hidden=(0, 2)))
    assert signals.heads.shape[:3] == (3, 2, 2) and signals.scores.shape[:3] == (3, 1, 2)
    torch.testing.assert_close(signals.logits, logits(built, TEXTS[:3]), rtol=0, atol=1e-6)


def test_the_texts_decide_and_a_second_round_goes_on() -> None:
    start = small_model("bert", layers=1)
    first, second, again = (PrunedHeads(0.5).build(start, context(start, texts)) for texts in (TEXTS, TEXTS[:1], TEXTS))
    assert same_weights(first, again)
    biases = [each.model.get_parameter("bert.encoder.layer.0.attention.output.dense.bias") for each in (first, second)]
    assert not torch.equal(*biases)
    third = PrunedHeads(0.5).build(first, context(start))
    assert [place.heads for place in attentions(third)] == [1]
    assert [place.heads for place in attentions(PrunedHeads(1.0).build(start, context(start)))] == [1]


@pytest.mark.parametrize("architecture", ["mpnet", "gpt2", "t5", "marian"])
def test_what_has_other_heads_is_refused(architecture: str) -> None:
    """MPNet and T5 add a table with a column for each head, which all layers share."""
    start = small_model("mpnet") if architecture == "mpnet" else small_writer(architecture)
    with pytest.raises(InputError, match=rf"pruned_heads: the heads of a {architecture} cannot .*; omit pruned_heads"):
        PrunedHeads().build(start, context(start))


def test_what_gives_no_answer_is_refused() -> None:
    start = small_model("bert", layers=1)
    with pytest.raises(InputError, match="no text"):
        PrunedHeads().build(start, context(start, []))
    low = LowRank().build(start, context(start))
    with pytest.raises(InputError, match="write pruned_heads first"):
        PrunedHeads().build(low, context(start))


def pruned_world(folder: Path) -> World:
    world = make_world(folder)
    world.student = PrunedHeads(0.5).build(world.student, BuildContext(world.teacher, 0, lambda: iter(TEXTS)))
    return world


@pytest.mark.parametrize("method", [method for method, task in CASES if task == "classify"])
def test_every_method_trains_it_or_says_why_not(method: str, tmp_path: Path) -> None:
    """`feature_transfer` compares each head with one of the teacher's, of which there are more."""
    world = pruned_world(tmp_path)
    training = world.training(method, world.live(), keep="last")
    if method == "feature_transfer":
        with pytest.raises(InputError, match="compared head by head"):
            list(train(training))
        return
    assert np.isfinite([step.loss for step in train(training)]).all()


def test_a_stopped_stage_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(pruned_world, tmp_path, "soft_targets", (2, 7))
    assert difference == 0 and changed


@pytest.mark.slow  # the same mechanism as that of low rank, whose export is tested by default
def test_exported_it_gives_the_same_answers(tmp_path: Path) -> None:
    start = small_model("bert", layers=2)
    student = PrunedHeads(0.5).build(start, context(start))
    rows = [(text, None) for text in TEXTS]
    plugins.make("exports", "onnx", {}).export(student, tmp_path / "out", rows)
    network, run = load_network(tmp_path / "out"), torch_forward(student.model)
    assert network.parameters == numbers(student)
    inputs = sample_inputs(student, 7, 20, 0)
    assert np.abs(network.forward(inputs) - run(inputs)).max() <= 1e-5
