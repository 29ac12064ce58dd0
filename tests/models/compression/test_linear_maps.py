"""Networks whose linear layers are two narrow ones: what they compute, what is saved and loaded, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from potstill.errors import InputError
from potstill.models.anatomy import stacks, without_effect
from potstill.models.architectures.reshaped import Factored, ReshapedModel, stated_shapes
from potstill.models.builder import BuildContext, Student
from potstill.models.compression import linear_maps, low_rank
from potstill.models.compression.linear_maps import Moments
from potstill.models.hooks import end_of_attention
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import load_student, save_student
from potstill.plugins.students.fresh import Fresh
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.plugins.students.low_rank import LowRank
from potstill.recipe import plugins
from potstill.training.loop import train
from tests.support.small_models import (
    ARCHITECTURES,
    WRITERS,
    logits,
    same_weights,
    sentences,
    small_model,
    small_writer,
)
from tests.support.training_world import CASES, World, make_world, stopped_and_resumed

TEXTS = [text for text, _ in sentences(40, seed=1)]


def context(start: Student, texts: list[str] = TEXTS) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(texts))


def numbers(student: Student) -> int:
    return sum(parameter.numel() for parameter in student.model.parameters())


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *WRITERS])
def test_it_is_really_smaller_by_what_the_ranks_say(architecture: str, tmp_path: Path) -> None:
    start = small_writer(architecture) if architecture in WRITERS else small_model(architecture, layers=2)
    built = LowRank(0.4).build(start, context(start))
    before, after = linear_maps.linear_maps(start.model), linear_maps.linear_maps(built.model)
    assert before.keys() == after.keys()
    gone = 0
    for name, module in after.items():
        rows, columns = linear_maps.matrix_of(before[name]).shape
        rank = low_rank.rank_of_budget(rows, columns, 0.4)
        assert isinstance(module, Factored)
        assert [part.weight.shape for part in module] == [(rank, columns), (rows, rank)]
        gone += rows * columns - rank * (rows + columns)
    assert numbers(start) - numbers(built) == gone > 0
    save_student(start, tmp_path / "whole")
    save_student(built, tmp_path / "small")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "small")]
    assert sizes[0] - sizes[1] == pytest.approx(4 * gone, rel=0.05)  # the header has more names
    again = load_student(tmp_path / "small")
    assert same_weights(again, built)
    loaded = load_student(tmp_path / "whole")  # its config was read from a file
    for each in (built, again, LowRank(0.4).build(loaded, context(loaded))):
        assert each.model.config.model_type == f"potstill-{start.model.config.model_type}"
    if architecture not in WRITERS:
        made = Fresh(2, 24).build(again, context(again)) if architecture != "mpnet" else start
        assert made.model.config.model_type == start.model.config.model_type
    assert torch.equal(logits(again, TEXTS), logits(built, TEXTS))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("texts", [None, 40])
def test_without_loss_of_rank_nothing_changes(architecture: str, texts: int | None) -> None:
    """The matrices of the start are products already, so that factors of their rank are the same maps."""
    start = small_model(architecture, layers=2)
    with torch.no_grad():
        for module in linear_maps.linear_maps(start.model).values():
            weight = module.get_parameter("weight")
            rank = low_rank.rank_of_budget(*weight.shape, 0.5)
            weight.copy_(2 * low_rank.factors_of(weight, rank).product)
    built = LowRank(0.5, texts=texts).build(start, context(start))
    assert numbers(built) < numbers(start)
    torch.testing.assert_close(logits(built, TEXTS), logits(start, TEXTS), rtol=0, atol=5e-5)


def outputs_of(student: Student, name: str) -> Tensor:
    """(tokens, outputs) of a linear map on the texts, one by one, so that there is no padding."""
    seen: list[Tensor] = []
    hook = student.model.get_submodule(name).register_forward_hook(lambda _, __, gave: seen.append(gave[0]))
    for text in TEXTS:
        with torch.inference_mode():
            student.model(**student.tokenizer(text, return_tensors="pt"))
    hook.remove()
    return torch.cat(seen).double()


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.self.query",
        "bert.encoder.layer.0.intermediate.dense",  # more outputs than inputs
        "bert.encoder.layer.0.output.dense",  # fewer
    ],
)
def test_no_other_factors_of_the_rank_change_the_outputs_less(name: str) -> None:
    """The error is the energy that the directions left out, and that of plain singular vectors and other bases is larger."""
    start = small_model("bert", layers=1)
    module = start.model.get_submodule(name)
    assert isinstance(module, nn.Linear)
    given = outputs_of(start, name)
    moments = linear_maps.moments_of(start, [name], TEXTS, 64)[name]
    assert moments.tokens == len(given)
    directions = linear_maps.directions_of(module, moments)
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, got: inputs.append(got[0][0]))
    outputs_of(start, name)
    hook.remove()
    read, rank = torch.cat(inputs).double(), 5

    def error(found: Any, seen: Moments | None) -> float:
        weights = dict(start.model.state_dict())
        factors = linear_maps.put_factors(weights, name, module, found, rank, seen)
        assert factors.left.shape[1] == factors.right.shape[0] == rank
        bias = weights[f"{name}.1.bias"].double()
        gives = read @ weights[f"{name}.0.weight"].double().T @ weights[f"{name}.1.weight"].double().T + bias
        return float((gives - given).square().sum(1).mean())

    ours = error(directions, moments)
    assert ours == pytest.approx(float(directions.energies[rank:].sum()), rel=1e-4)
    assert ours < 0.7 * error(linear_maps.directions_of(module, None), None)
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        turned = directions.vectors + 0.05 * torch.randn(directions.vectors.shape, generator=draw, dtype=torch.float64)
        other = linear_maps.Directions(torch.linalg.qr(turned).Q, directions.energies)
        assert error(other, moments) > ours


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_if_all_inputs_count_alike_it_is_the_singular_value_decomposition(rows: int, columns: int, seed: int) -> None:
    layer = nn.Linear(columns, rows, bias=False).double()
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(seed))
    alike = linear_maps.directions_of(layer, None)
    of_inputs = columns < rows
    spread = torch.eye(columns).double() if of_inputs else layer.weight.detach() @ layer.weight.detach().T
    white = linear_maps.directions_of(layer, Moments(of_inputs, torch.zeros(len(spread)).double(), spread, 1))
    for rank in range(1, min(rows, columns) + 1):
        expected = low_rank.factors_of(layer.weight, rank)
        for directions in (alike, white):
            found = low_rank.factors_along(layer.weight, directions.vectors[:, :rank])
            torch.testing.assert_close(found.product, expected.product, rtol=0, atol=1e-6)
            torch.testing.assert_close(found.left.norm(dim=0), found.right.norm(dim=1), rtol=1e-6, atol=1e-9)
    shares = low_rank.energies(layer.weight)
    for share in (0.3, 0.9, 1 - 1e-9):
        assert alike.rank_of_energy(share) == min(int((shares < share).sum()) + 1, len(shares))


def test_energy_gives_each_matrix_the_rank_that_it_needs() -> None:
    start = small_model("bert", layers=2)
    built = LowRank(energy=0.8, texts=None).build(start, context(start))
    whole = linear_maps.linear_maps(start.model)
    for name, module in linear_maps.linear_maps(built.model).items():
        matrix = linear_maps.matrix_of(whole[name])
        rank = low_rank.rank_of_energy(matrix, 0.8)
        if rank * sum(matrix.shape) < matrix.numel():
            assert isinstance(module, Factored) and module[0].out_features == rank
        else:  # two factors would have more numbers
            assert torch.equal(module.get_parameter("weight"), whole[name].get_parameter("weight"))


def test_factors_become_narrower_in_a_second_round_and_never_wider() -> None:
    start = small_model("bert", layers=1)
    once = LowRank(0.5).build(start, context(start))
    twice = LowRank(0.25).build(once, context(start))
    assert numbers(twice) < numbers(once)
    with pytest.raises(InputError, match=r"low_rank: with share = 0.5 no matrix .*; write a smaller one"):
        LowRank(0.5).build(twice, context(start))
    # of the map that both stand for, along the directions of what it gives now
    name = "bert.encoder.layer.0.intermediate.dense"
    module = once.model.get_submodule(name)
    moments = linear_maps.moments_of(once, [name], TEXTS, 64)[name]
    rank = low_rank.rank_of_budget(*linear_maps.matrix_of(module).shape, 0.25)
    vectors = linear_maps.directions_of(module, moments).vectors[:, :rank]
    expected = vectors @ vectors.T @ linear_maps.matrix_of(module).double()
    found = linear_maps.matrix_of(twice.model.get_submodule(name)).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_what_gains_nothing_or_cannot_be_split_is_refused() -> None:
    start = small_model("bert", layers=1)
    with pytest.raises(InputError, match=r"low_rank: with energy = 1.0 no matrix would have fewer numbers .*; write"):
        LowRank(energy=1.0, texts=None).build(start, context(start))
    with pytest.raises(InputError, match="no text"):
        LowRank().build(start, context(start, []))
    bag = plugins.make("students", "bag", {"features": 12, "width": 16}).build(start, context(start))
    with pytest.raises(InputError, match=r"low_rank: a bag has no layers; omit low_rank"):
        LowRank().build(bag, context(start))


def test_layers_can_be_taken_from_it_and_a_stock_model_made_like_it() -> None:
    start = small_model("bert")
    built = LowRank(0.5).build(start, context(start))
    kept = KeepLayers([2, 4]).build(built, context(built))
    assert isinstance(kept.model, ReshapedModel)
    assert {name.split(".")[2] for name in stated_shapes(kept.model.config)} == {"0", "1"}
    of_both = [built.model.get_submodule("bert.encoder.layer.3"), kept.model.get_submodule("bert.encoder.layer.1")]
    assert all(map(torch.equal, *(part.parameters() for part in of_both)))
    made = Fresh(2, 24).build(built, context(built))
    assert type(made.model) is type(start.model) and "potstill" not in made.model.config.model_type
    assert "potstill_shapes" not in made.model.config.to_dict()


def test_what_potstill_knows_of_the_stock_model_it_knows_of_this_one() -> None:
    start = small_model("bert", layers=2)
    built = LowRank(0.5).build(start, context(start))
    assert list(stacks(built.model)) == list(stacks(start.model))
    assert len(without_effect([built.model])) == len(without_effect([start.model])) == 2
    assert end_of_attention(built.model) is not None


# loading


def written(folder: Path, shapes: object) -> Path:
    start = small_model("bert", layers=1)
    save_student(LowRank(0.5).build(start, context(start)), folder)
    config = json.loads((folder / "config.json").read_text())
    config["potstill_shapes"] = shapes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "shapes",
    [
        None,
        [],
        "wide",
        {},  # those of the file are others
        {"encoder.layer.0.output.dense": [32, 0, 32]},
        {"encoder.layer.0.output.dense": [32, 4, 4, 32]},
        {"encoder.layer.0.output.dense": [32, True, 32]},
        {"encoder.layer.0.output.dense": [2**30, 2**30, 2**30]},
        {"encoder.layer.0.output.dense": [2**40]},
        {"encoder.layer.0.output": [32, 4, 32]},
        {"encoder.layer.0": [32, 32]},
        {"": [32, 32]},
        {"..": [32, 32]},
        {"embeddings.word_embeddings": [32, 32]},
        {"forward": [32, 32]},
    ],
)
def test_other_shapes_than_those_of_the_file_are_refused(shapes: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"; (give|use|write)"):
        load_student(written(tmp_path / "student", shapes))


# training and exports


def low_rank_world(folder: Path) -> World:
    world = make_world(folder)
    world.student = LowRank(0.5).build(world.student, BuildContext(world.teacher, 0, lambda: iter(TEXTS)))
    return world


METHODS = [method for method, task in CASES if task == "classify"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_its_factors(method: str, tmp_path: Path) -> None:
    world = low_rank_world(tmp_path)
    before = {name: weight.clone() for name, weight in world.student.model.state_dict().items()}
    optimizer = {"name": "adamw", "rate": 1e-3, "warmup": 0.0, "decay": "constant"}
    # live: a method may ask for what is not remembered
    losses = [step.loss for step in train(world.training(method, world.live(), optimizer=optimizer, keep="last"))]
    assert np.isfinite(losses).all()
    last = "bert.encoder.layer.1.attention.self.value"
    for name in (f"{last}.0.weight", f"{last}.1.weight"):
        assert not torch.equal(world.student.model.get_parameter(name), before[name]), name


def test_a_stopped_stage_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(low_rank_world, tmp_path, "soft_targets", (2, 7))
    assert difference == 0 and changed


@pytest.mark.parametrize("export", ["onnx", pytest.param("int8", marks=pytest.mark.slow)])
def test_exported_it_gives_the_same_answers(export: str, tmp_path: Path) -> None:
    start = small_model("bert", layers=2)
    student = LowRank(0.5).build(start, context(start))
    rows = [(text, None) for text in TEXTS]
    checked = plugins.make("exports", export, {}).export(student, tmp_path / "out", rows)
    network, run = load_network(tmp_path / "out"), torch_forward(student.model)
    assert network.parameters == numbers(student)
    inputs = sample_inputs(student, 7, 20, 0)
    close = 1e-5 if export == "onnx" else 0.3
    assert np.abs(network.forward(inputs) - run(inputs)).max() <= close
    assert checked.agreement >= 0.9


def test_the_coded_file_gives_the_same_weights(tmp_path: Path) -> None:
    start = small_model("bert", layers=1)
    low = LowRank(0.5).build(start, context(start))
    student = plugins.make("students", "clustered", {"values": 8}).build(low, context(low))
    assert isinstance(student.model, ReshapedModel)
    plugins.make("exports", "huffman", {}).export(student, tmp_path / "out", [(text, None) for text in TEXTS])
    assert same_weights(load_student(tmp_path / "out"), student)
