"""What an optimizer's settings promise of the weights after each step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from potstill.models.builder import BuildContext
from potstill.models.compression.masks import prunable
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.recipe.schema import Optimizer
from potstill.training.loop import train
from potstill.training.optimizers import BoundedNorms
from tests.support.small_models import small_convolutions, small_images, small_model
from tests.support.training_world import make_world


def lengths(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().flatten(1).norm(dim=1)


def test_longer_weights_of_a_unit_are_scaled_and_all_others_stay_as_they_are() -> None:
    for student in (small_images(), small_convolutions(), small_model("bert", layers=1)):
        layers = prunable(student.model)
        most = float(torch.cat([lengths(weight) for weight in layers.values()]).median())
        before = {name: weight.detach().clone() for name, weight in student.model.named_parameters()}
        BoundedNorms([student.model], most).settle()
        for name, weight in student.model.named_parameters():
            if name not in layers:
                assert torch.equal(weight, before[name]), name
                continue
            longer = lengths(before[name]) > most
            assert torch.equal(weight[~longer], before[name][~longer])
            torch.testing.assert_close(lengths(weight)[longer], torch.full((int(longer.sum()),), most))
            directions = [torch.nn.functional.normalize(each.detach().flatten(1)) for each in (weight, before[name])]
            torch.testing.assert_close(*directions)


def test_units_of_transposed_matrices_are_their_columns() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=8, initializer_range=1.0)
    model = GPT2LMHeadModel(config)
    BoundedNorms([model], 0.5).settle()
    weight = model.transformer.h[0].mlp.c_fc.weight.detach()  # (in, out)
    assert weight.shape == (8, 32) and float(weight.norm(dim=0).max()) <= 0.5001
    assert float(weight.norm(dim=1).max()) > 0.6


def test_no_step_leaves_longer_weights_and_zeros_stay_zero(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.student = PrunedWeights(0.5).build(world.student, BuildContext(world.teacher, 0, lambda: iter(())))
    layers = prunable(world.student.model)
    zeros = {name: weight.detach() == 0 for name, weight in layers.items()}
    settings = {"rate": 0.02, "warmup": 0.0, "decay": "constant", "max_norm": 0.2}
    longest = []
    for _ in train(world.training("hard_labels", world.remembering(), optimizer=settings)):
        longest.append(max(float(lengths(weight).max()) for weight in layers.values()))
    assert len(longest) == 6 and max(longest) <= 0.2001
    for name, weight in layers.items():
        assert torch.equal(weight == 0, zeros[name])


def test_without_a_bound_nothing_is_scaled() -> None:
    assert Optimizer().max_norm is None and not BoundedNorms([small_images().model], None).weights
    with pytest.raises(ValueError, match="greater than 0"):
        Optimizer(max_norm=0.0)
