"""Weights of few bits: which values they have, that training keeps them so, and that nothing is lost on the way."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from potstill.errors import InputError, TrainingError
from potstill.models.anatomy import word_embeddings
from potstill.models.builder import BuildContext, Student
from potstill.models.compression.held import HeldWeights
from potstill.models.compression.masks import prunable, tables
from potstill.models.compression.quantization import Levels, grid_of
from potstill.models.compression.quantized import BITS, QuantizedWeight, stated_bits
from potstill.models.student import load_student, save_student
from potstill.plugins.students.fake_quantized import FakeQuantized
from potstill.plugins.students.fresh import Fresh
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.recipe import plugins
from potstill.training.loop import train
from tests.support.small_models import ARCHITECTURES, logits, same_weights, sentences, small_model
from tests.support.training_world import CASES, World, make_world, stopped_and_resumed

TEXTS = [text for text, _ in sentences(12, seed=1)]
every_count = pytest.mark.parametrize("bits", range(1, 9))


def context(start: Student) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(TEXTS))


def on_grid(weight: Tensor, bits: int, per_row: bool = True, zeros: bool = False) -> bool:
    """Whether every row has at most as many values as the bits can say, evenly spaced around zero."""
    top = max(1, 2 ** (bits - 1) - 1)
    rows = weight.detach().double() if per_row else weight.detach().double().flatten()[None]
    steps = rows / rows.abs().amax(1, keepdim=True).clamp(min=1e-30) * top
    whole = bool(((steps - steps.round()).abs() < 1e-3).all())
    return whole and (bits > 1 or zeros or bool((rows != 0).all()))


def weights_of(seed: int, rows: int = 6, columns: int = 30) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# rounding


@given(seed=st.integers(0, 1000), bits=st.integers(2, 8), per_row=st.booleans())
@settings(deadline=None, max_examples=60)
def test_with_the_widest_scale_it_is_the_symmetric_narrow_grid_of_the_reference(
    seed: int, bits: int, per_row: bool
) -> None:
    weights, levels = weights_of(seed), Levels(bits, per_row)
    grid = grid_of(weights, bits, symmetric=True, per_row=per_row, narrow=True)
    assert (grid.lowest, grid.highest) == (-levels.top, levels.top)
    assert torch.equal(levels.rounded(weights, levels.widest_scale(weights)), grid.nearest(weights))


@given(seed=st.integers(0, 1000), bits=st.integers(1, 8), per_row=st.booleans(), pruned=st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_best_scale_is_better_than_the_widest_and_rounding_twice_is_rounding_once(
    seed: int, bits: int, per_row: bool, pruned: bool
) -> None:
    weights, levels = weights_of(seed), Levels(bits, per_row, pruned)
    if pruned:
        weights[weights.abs() < 0.5] = 0
    scale = levels.best_scale(weights)
    assert scale.shape == ((6, 1) if per_row else ())
    once = levels.rounded(weights, scale)
    widest = levels.rounded(weights, levels.widest_scale(weights))
    assert (once - weights).square().sum() <= (widest - weights).square().sum() * (1 + 1e-6)
    assert on_grid(once, bits, per_row, zeros=pruned)
    assert not pruned or torch.equal(once == 0, weights == 0)
    found = levels.widest_scale(once)  # a later stage reads the scale off the weights
    torch.testing.assert_close(found, scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(levels.rounded(once, levels.refitted(once, found)), once, rtol=1e-5, atol=0)


@given(seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_one_bit_is_the_sign_times_the_mean(seed: int) -> None:
    weights, levels = weights_of(seed), Levels(1)
    expected = weights.sign() * weights.abs().mean(1, keepdim=True)  # Rastegari et al., 2016
    torch.testing.assert_close(levels.rounded(weights, levels.best_scale(weights)), expected)


def test_more_bits_are_nearer() -> None:
    weights = weights_of(0, 20, 200)
    errors = []
    for bits in range(1, 9):
        levels = Levels(bits)
        errors.append(float((levels.rounded(weights, levels.best_scale(weights)) - weights).square().mean()))
    assert all(more < 0.6 * fewer for fewer, more in itertools.pairwise(errors)), errors


# the builder


@every_count
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_matrix_is_on_its_grid_and_all_else_is_as_before(bits: int, architecture: str, tmp_path: Path) -> None:
    start = small_model(architecture, layers=1)
    built = FakeQuantized(bits, 8 if bits == 4 else None, "row").build(start, context(start))
    matrices = prunable(built.model)
    assert matrices and all(on_grid(weight, bits) for weight in matrices.values())
    if bits == 4:
        assert all(on_grid(table, 8) for table in tables(built.model).values())
        assert not on_grid(word_embeddings(built.model).weight, 7)
        matrices |= tables(built.model)  # type: ignore[arg-type]
    for name, parameter in built.model.named_parameters():
        assert torch.equal(parameter, start.model.get_parameter(name)) == (name not in matrices), name
    save_student(built, tmp_path / "student")
    again = load_student(tmp_path / "student")
    assert same_weights(again, built) and stated_bits(again.model.config) == stated_bits(built.model.config) != {}


def test_a_scale_for_the_whole_matrix_has_few_values_and_a_small_coded_file(tmp_path: Path) -> None:
    start = small_model("bert", layers=2)
    sizes = {}
    for scales in ("row", "matrix"):
        built = FakeQuantized(4, 4, scales).build(start, context(start))  # type: ignore[arg-type]
        assert all((len(weight.unique()) <= 15) == (scales == "matrix") for weight in prunable(built.model).values())
        out = tmp_path / scales
        plugins.make("exports", "huffman", {}).export(built, out, [(text, None) for text in TEXTS])
        sizes[scales] = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    save_student(start, tmp_path / "whole")
    assert sizes["matrix"] < 0.4 * (tmp_path / "whole" / "model.safetensors").stat().st_size
    assert sizes["matrix"] < sizes["row"]


def test_eight_bits_change_little_and_what_cannot_be_rounded_is_refused() -> None:
    start = small_model("bert", layers=2)
    torch.testing.assert_close(
        logits(FakeQuantized().build(start, context(start)), TEXTS), logits(start, TEXTS), rtol=0, atol=0.05
    )
    bag = plugins.make("students", "bag", {"features": 12, "width": 16}).build(start, context(start))
    with pytest.raises(InputError, match=r"fake_quantized: .*; omit fake_quantized"):
        FakeQuantized().build(bag, context(start))
    made = Fresh(1, 24).build(FakeQuantized().build(start, context(start)), context(start))
    assert not stated_bits(made.model.config)


@pytest.mark.parametrize(
    "stated",
    [
        None,
        8,
        {},
        {"layers": 8},
        {"layers": 9, "embeddings": 8, "per_row": True},
        {"layers": True, "embeddings": 8, "per_row": True},
        {"layers": 8, "embeddings": 0, "per_row": True},
        {"layers": 8, "embeddings": None, "per_row": 1},
    ],
)
def test_what_potstill_has_not_written_into_a_config_is_ignored(stated: object) -> None:
    model = small_model("bert", layers=1).model
    setattr(model.config, BITS, stated)
    assert not HeldWeights([model]).quantized


# training


def quantized_world(folder: Path, bits: int = 4, pruned: bool = False, embeddings: int | None = 8) -> World:
    world = make_world(folder)
    if pruned:
        world.student = PrunedWeights(0.5).build(world.student, context(world.teacher))
    world.student = FakeQuantized(bits, embeddings).build(world.student, context(world.teacher))
    return world


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adadelta"])
@pytest.mark.parametrize(("bits", "pruned"), [(8, False), (4, True), (2, False), (2, True), (1, False), (1, True)])
def test_training_moves_weights_on_their_grid_and_keeps_zeros(
    bits: int, pruned: bool, optimizer: str, tmp_path: Path
) -> None:
    world = quantized_world(tmp_path, bits, pruned)
    model = world.student.model
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    rate = {"adamw": 3e-3, "sgd": 0.1, "adadelta": 1.0}[optimizer]
    settings = {"name": optimizer, "rate": rate, "warmup": 0.0, "decay": "constant"}
    assert len(list(train(world.training("hard_labels", world.remembering(), optimizer=settings)))) == 6
    for name, weight in prunable(model).items():
        assert on_grid(weight, bits, zeros=pruned), name
        assert not torch.equal(weight, before[name])
        assert not pruned or torch.equal(weight == 0, before[name] == 0)
    assert on_grid(word_embeddings(model).weight, 8)


def test_a_step_moves_the_exact_weights_by_the_gradient_at_the_rounded_ones() -> None:
    """As autograd has it with w + (rounded(w) − w).detach() in the forward pass, over steps each too small for the grid."""
    draw = torch.Generator().manual_seed(0)
    given, wanted = torch.randn(20, 30, generator=draw), torch.randn(20, 6, generator=draw)
    levels, weight = Levels(3), nn.Parameter(weights_of(1))
    with torch.no_grad():
        weight.copy_(levels.rounded(weight, levels.best_scale(weight)))
    exact, scale = weight.detach().clone().requires_grad_(), levels.widest_scale(weight.detach())
    held, ours = QuantizedWeight(weight, levels), torch.optim.SGD([weight], lr=0.004)
    theirs, changed = torch.optim.SGD([exact], lr=0.004), 0
    for _ in range(30):
        rounded = exact + (levels.rounded(exact.detach(), scale) - exact).detach()
        for optimizer, used in ((ours, weight), (theirs, rounded)):
            optimizer.zero_grad()
            (given @ used.T - wanted).square().mean(0).sum().backward()
        before = weight.detach().clone()
        held.release()
        ours.step()
        held.settle()
        theirs.step()
        scale = levels.refitted(exact.detach(), scale)
        torch.testing.assert_close(held.exact, exact.detach(), rtol=0, atol=1e-5)
        changed += int((held.levels.whole_numbers(before, scale) != levels.whole_numbers(weight.detach(), scale)).sum())
    assert changed > 20  # small steps add up


@pytest.mark.parametrize("pruned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_stopped_stage_goes_on_to_the_same_bits(pruned: bool, tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(
        lambda folder: quantized_world(folder, 3, pruned), tmp_path, "soft_targets", (2, 7)
    )
    assert difference == 0 and changed


@pytest.mark.parametrize("keep", ["best", "average"])
def test_whatever_epoch_is_kept_is_on_the_grid(keep: str, tmp_path: Path) -> None:
    world = quantized_world(tmp_path, 3)
    stage: dict[str, Any] = {"averaged": 3} if keep == "average" else {}
    list(train(world.training("hard_labels", world.remembering(), epochs=3.0, keep=keep, **stage)))
    assert all(on_grid(weight, 3) for weight in prunable(world.student.model).values())


@pytest.mark.parametrize("method", [method for method, task in CASES if task == "classify"])
def test_every_method_trains_it(method: str, tmp_path: Path) -> None:
    world = quantized_world(tmp_path)
    steps = list(train(world.training(method, world.live(), keep="last")))
    assert np.isfinite([step.loss for step in steps]).all()
    assert all(on_grid(weight, 4) for weight in prunable(world.student.model).values())


def test_a_checkpoint_of_another_student_is_refused() -> None:
    start = small_model("bert", layers=1)
    saved = HeldWeights([FakeQuantized().build(start, context(start)).model]).tensors()
    again = HeldWeights([FakeQuantized().build(start, context(start)).model], saved)
    assert all(torch.equal(saved[name], tensor) for name, tensor in again.tensors().items())
    other = FakeQuantized().build(small_model("bert", layers=2), context(start))
    wider = FakeQuantized().build(small_model("bert", layers=1, width=64), context(start))
    for model in (other.model, wider.model):
        with pytest.raises(TrainingError, match="belongs to another student"):
            HeldWeights([model], saved)
