"""In training, pruned weights stay zero and shared values stay shared, whatever else is asked of the stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potstill.models.anatomy import word_embeddings
from potstill.models.builder import BuildContext
from potstill.models.compression.held import HeldWeight, HeldWeights, groups_of
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.plugins.students.clustered import Clustered
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.training.loop import train
from tests.support.small_models import small_model
from tests.support.training_world import World, make_world, stopped_and_resumed

PRUNED = [("pruned_weights", {"sparsity": 0.7})]
CLUSTERED = [("clustered", {"values": 8, "embeddings": 16})]
BUILDERS = {"pruned_weights": PrunedWeights, "clustered": Clustered}


def compressed(folder: Path, builders: list[tuple[str, dict[str, Any]]]) -> World:
    world = make_world(folder)
    for name, fields in builders:
        world.student = BUILDERS[name](**fields).build(world.student, BuildContext(world.teacher, 0, lambda: iter(())))
    return world


def groups(weight: Tensor) -> np.ndarray:
    """Which weights are equal, whatever their values; zeros are −1."""
    flat = weight.detach().flatten().numpy()
    _, first, places = np.unique(flat, return_index=True, return_inverse=True)
    return np.where(flat == 0, -1, first[places])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adadelta"])
@pytest.mark.parametrize("builders", [PRUNED, CLUSTERED, PRUNED + CLUSTERED], ids=["pruned", "clustered", "both"])
def test_training_keeps_zeros_and_groups_and_moves_all_else(
    builders: list[tuple[str, dict[str, Any]]], optimizer: str, tmp_path: Path
) -> None:
    world = compressed(tmp_path, builders)
    model = world.student.model
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rate = {"adamw": 1e-3, "sgd": 0.1, "adadelta": 1.0}[optimizer]
    settings = {"name": optimizer, "rate": rate, "warmup": 0.0, "decay": "constant"}
    training = world.training("hard_labels", world.remembering(), optimizer=settings)
    assert len(list(train(training))) == 6
    pruned, clustered = (any(name == wanted for name, _ in builders) for wanted in ("pruned_weights", "clustered"))
    for name in prunable(model):
        weight, old = model.get_parameter(name), before[name]
        assert torch.equal(weight == 0, old == 0) or not pruned
        if clustered:
            assert np.array_equal(groups(weight), groups(old)), name
            assert len(weight.unique()) <= 8 + pruned
        moved = (weight != old)[old != 0]
        assert moved.float().mean() > 0.9, name
    if pruned:
        assert share_of_zeros(prunable(model)) == share_of_zeros({name: before[name] for name in prunable(model)})
    if clustered:
        table = word_embeddings(model).weight
        assert np.array_equal(groups(table), groups(before["bert.embeddings.word_embeddings.weight"]))


def test_a_group_moves_by_the_mean_of_its_gradients() -> None:
    """The projection is the nearest gradient that keeps the groups: what it leaves out is orthogonal to it."""
    weight = nn.Parameter(torch.tensor([[0.5, 0.0, 0.5], [-0.2, 0.5, -0.2]]))
    held = HeldWeight(weight, groups_of(weight, torch.tensor([-0.2, 0.5])))
    gradient = torch.tensor([[3.0, 9.0, 1.0], [4.0, 5.0, 6.0]])
    weight.grad = gradient.clone()
    held.project()
    assert weight.grad.tolist() == [[3.0, 0.0, 3.0], [5.0, 3.0, 5.0]]
    assert float((weight.grad * (gradient - weight.grad)).sum()) == 0


def test_rounding_that_drives_members_apart_is_undone() -> None:
    weight = nn.Parameter(torch.tensor([[0.5, 0.0, 0.5], [-0.2, 0.5, -0.2]]))
    held = HeldWeight(weight, groups_of(weight, torch.tensor([-0.2, 0.5])))
    with torch.no_grad():
        weight += torch.tensor([[0.25, 0.1, 0.3], [0.0, 0.2, 0.1]])
    held.settle()
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.75, 0.0, 0.75], [-0.2, 0.75, -0.2]]), rtol=0, atol=0)


@pytest.mark.parametrize("builders", [PRUNED + CLUSTERED, CLUSTERED + PRUNED], ids=["pruned first", "clustered first"])
def test_a_stopped_stage_goes_on_to_the_same_bits(builders: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(
        lambda folder: compressed(folder, builders), tmp_path, "soft_targets", (2, 7)
    )
    assert difference == 0 and changed


def test_nothing_is_held_in_a_model_that_says_nothing() -> None:
    start = small_model("bert", layers=1)
    with torch.no_grad():
        for weight in prunable(start.model).values():
            weight[:2] = 0
    assert not HeldWeights([start.model]).weights
    built = PrunedWeights(0.1).build(start, BuildContext(start, 0, lambda: iter(())))
    held = HeldWeights([built.model])
    assert held.weights.keys() == {f"0.{name}" for name in prunable(built.model)}
    assert all(map(held.holds, prunable(built.model).values()))
    assert not held.holds(word_embeddings(built.model).weight)


def test_groups_that_meet_in_one_value_are_two_in_a_checkpoint() -> None:
    start = small_model("bert", layers=1)
    built = Clustered(8, 700).build(start, BuildContext(start, 0, lambda: iter(())))
    held = HeldWeights([built.model])
    saved = {name: groups.clone() for name, groups in held.tensors().items()}
    assert {groups.dtype for groups in saved.values()} == {torch.uint8, torch.int16}
    with torch.no_grad():
        for parameter in built.model.parameters():
            parameter.zero_()
    again = HeldWeights([built.model], saved)
    for name, weight in held.weights.items():
        assert torch.equal(again.weights[name].groups, weight.groups)
        assert torch.equal(again.weights[name].first[1:], weight.first[1:])
