"""What makes a step cheaper changes no result: fewer rows of the word table, a shorter last layer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potstill.data.batches import used_token_ids, view
from potstill.models import hooks as listening
from potstill.models.anatomy import word_embeddings
from potstill.models.hooks import listen
from potstill.recipe.schema import Optimizer
from potstill.signals import Signals, View, Wants
from potstill.training import checkpoints
from potstill.training import loop as training
from potstill.training.loop import Step, train
from potstill.training.setup import Training
from potstill.training.used_rows import UsedRows, used_rows
from tests.support.small_models import ARCHITECTURES, sentences, small_model
from tests.support.training_world import World, make_world

SETTINGS: dict[str, Any] = {"rate": 2e-3, "weight_decay": 0.1, "clip": 0.5}


def whole_table(_: Any, __: Any, model: Any, *___: Any) -> UsedRows:
    table = word_embeddings(model)
    return UsedRows(table, np.ones(table.num_embeddings, np.bool_))


def set_up(world: World, start: dict[str, Tensor], name: str, **stage: Any) -> Training:
    world.student.model.load_state_dict(start)
    world.folder = world.folder.parent / name
    world.folder.mkdir(exist_ok=True)
    settings = {"epochs": 2.0, "keep": "last", "tokens": 100, "optimizer": SETTINGS, **stage}
    return world.training("patient", world.remembering(), **settings)


def weights(world: World) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}


def same_steps(ours: list[Step], theirs: list[Step]) -> None:
    assert [step.loss for step in ours] == pytest.approx([step.loss for step in theirs], rel=1e-5)
    assert [step.gradient_norm for step in ours] == pytest.approx([step.gradient_norm for step in theirs], rel=1e-5)
    ends = [step.dev.get("dev", 0.0) for step in theirs]
    assert [step.dev.get("dev", 0.0) for step in ours] == pytest.approx(ends, rel=1e-5)


def same_weights(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def with_every_word_scored(made: Training) -> Training:
    """Dev holds words that training never saw."""
    table = word_embeddings(made.models[0])

    def score() -> dict[str, float]:
        model = made.models[0].eval()
        ids = torch.arange(table.num_embeddings)[:, None].repeat(1, 3)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return {"dev": float(logits.double().square().mean())}

    object.__setattr__(made, "score", score)
    return made


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("optimizer", [SETTINGS, {"name": "sgd", "rate": 0.05, "weight_decay": 0.0}])
def test_a_small_table_trains_as_the_whole_one(
    optimizer: dict[str, Any], architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step's loss and norm, dev in the middle, all weights at the end; decay, clipping and dropout are on."""
    (tmp_path / "rows").mkdir()
    world = make_world(tmp_path / "rows", architecture=architecture)
    start = weights(world)
    made = with_every_word_scored(set_up(world, start, "small", optimizer=optimizer))
    fast = list(train(made))
    found = weights(world)
    monkeypatch.setattr(training, "used_rows", whole_table)
    plain = list(train(with_every_word_scored(set_up(world, start, "whole", optimizer=optimizer))))
    expected = weights(world)
    assert len(fast) == 12 and max(step.gradient_norm for step in fast) > SETTINGS["clip"]
    same_steps(fast, plain)
    same_weights(found, expected)

    table = word_embeddings(world.student.model)
    name = next(name for name, tensor in world.student.model.named_parameters() if tensor is table.weight)
    unused = ~torch.from_numpy(used_token_ids(made.sources, table.num_embeddings))
    assert 0 < unused.sum() < len(unused) - 10
    assert torch.equal(found[name][unused], expected[name][unused])  # to the bit
    decayed = start[name][unused]
    for step in fast:
        decayed = decayed * (1 - step.rate * optimizer["weight_decay"])
    assert torch.equal(found[name][unused], decayed)


def test_checkpoints_are_those_of_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was begun with the whole table goes on with the small one, and the files have the same tensors."""
    (tmp_path / "rows").mkdir()
    world = make_world(tmp_path / "rows")
    start = weights(world)
    straight = list(train(set_up(world, start, "straight")))
    expected = weights(world)
    saved = {}
    for name in ("small", "whole"):
        with monkeypatch.context() as patch:
            if name == "whole":
                patch.setattr(training, "used_rows", whole_table)
            made = set_up(world, start, name)
            object.__setattr__(made, "save_every", 1)
            running = train(made)
            for _ in range(6):
                next(running)
            running.close()
        found = checkpoints.newest(made.folder / "checkpoints")
        assert found is not None and found.step == 5
        saved[name] = found.tensors("optimizer")
        told = list(train(set_up(world, start, f"{name} resumed"), found))
        assert [step.step for step in told] == list(range(6, 13))
        same_steps(told, straight[5:])
        same_weights(weights(world), expected)
        if name == "small":  # its own: to the bit
            assert [step.loss for step in told] == [step.loss for step in straight[5:]]
            assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(world).items())
    assert saved["small"].keys() == saved["whole"].keys()
    same_weights(saved["small"], saved["whole"])


def test_the_table_is_whole_again_however_training_ends(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    model = world.student.model
    table, before = word_embeddings(model), word_embeddings(model).weight
    made = world.training("patient", world.live())
    unused = int(np.flatnonzero(~used_token_ids(made.sources, table.num_embeddings))[0])
    running = train(made)
    next(running)
    assert len(table.weight) < len(before)
    with pytest.raises(IndexError):  # never a wrong row
        model(input_ids=torch.tensor([[unused]]))
    running.close()
    assert table.weight is before and not table._forward_pre_hooks
    object.__setattr__(made, "score", lambda: {}[0])
    with pytest.raises(KeyError):
        list(train(made))
    assert table.weight is before and not table._forward_pre_hooks
    model(input_ids=torch.tensor([[unused]]))


def test_heads_that_share_an_encoder_share_the_small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").mkdir()
    world = make_world(tmp_path / "rows")
    start = weights(world)
    first, second = (
        world.source(world.examples.take(np.arange(24))),
        world.source(world.examples.take(np.arange(24, 48))),
    )

    def run(name: str) -> tuple[list[Step], dict[str, Tensor]]:
        made = set_up(world, start, name)
        torch.manual_seed(0)
        other = type(made.models[0])(made.models[0].config)
        setattr(other, other.base_model_prefix, made.models[0].base_model)
        both = {"models": [made.models[0], other], "teachers": made.teachers * 2, "sources": [first, second]}
        both = Training(**{**vars(made), **both})
        return list(train(both)), {
            name: tensor.clone() for name, tensor in nn.ModuleList(both.models).state_dict().items()
        }

    fast, found = run("small")
    monkeypatch.setattr(training, "used_rows", whole_table)
    plain, expected = run("whole")
    same_steps(fast, plain)
    same_weights(found, expected)


def test_where_a_small_table_would_differ_the_whole_one_is_trained(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    model, sources = world.student.model, [world.source()]
    rows = len(word_embeddings(model).weight)

    def trained(settings: dict[str, Any], network: nn.Module) -> int:
        return len(used_rows(Optimizer(**settings), network, model, sources).small)

    network = nn.ModuleList([model])
    assert trained({}, network) < rows
    assert trained({"name": "sgd", "weight_decay": 0.0}, network) < rows
    for name in ("sgd", "adadelta"):  # decay through the gradient has momentum
        assert trained({"name": name}, network) == rows
    tied = nn.Linear(model.config.hidden_size, rows, bias=False)
    tied.weight = word_embeddings(model).weight
    assert trained({}, nn.ModuleList([model, tied])) == rows
    word_embeddings(model).weight.requires_grad_(False)
    assert trained({}, network) == rows


def test_rows_become_tensors_as_one_by_one(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    tokens = world.source().student
    rows = np.array([5, 0, 17, 5])
    made = view(world.task, tokens, rows)
    for place, row in enumerate(rows):
        ids = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
        assert made.inputs["input_ids"][place, : len(ids)].tolist() == ids.tolist()
        assert (made.inputs["input_ids"][place, len(ids) :] == tokens.padding).all()
        assert made.real[place].tolist() == [True] * len(ids) + [False] * (made.real.shape[1] - len(ids))
        assert made.inputs["attention_mask"][place].tolist() == made.real[place].int().tolist()


def heard_with_gradient(model: Any, inputs: View) -> tuple[Signals, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    heard = listen(model, inputs, Wants(logits=True, cls=(1, 3)))
    (heard.logits.square().sum() + heard.cls.square().sum()).backward()
    return heard, {name: tensor.grad.clone() for name, tensor in model.named_parameters() if tensor.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_layer_ends_with_the_first_token_where_nothing_else_is_read(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = small_model(architecture)
    model = copy.deepcopy(student.model)
    made = dict(student.tokenizer([text for text, _ in sentences(6, 0)], padding=True, return_tensors="pt"))
    inputs = View(made, made["attention_mask"].bool(), torch.tensor([[row, 0] for row in range(6)]))
    last = listening.encoder_layers(model)[-1]
    sizes: list[int] = []
    last.register_forward_hook(lambda _, __, out: sizes.append((out if isinstance(out, Tensor) else out[0]).shape[1]))
    heard, gradient = heard_with_gradient(model, inputs)
    assert sizes == [1 if architecture in ("bert", "roberta", "electra") else made["input_ids"].shape[1]]
    monkeypatch.setattr(listening, "end_of_attention", lambda _: None)
    expected, whole = heard_with_gradient(model, inputs)
    torch.testing.assert_close(heard.logits, expected.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(heard.cls, expected.cls, rtol=1e-5, atol=1e-6)
    assert gradient.keys() == whole.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(gradient[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_a_layer_that_is_used_twice_is_not_cut() -> None:
    model = copy.deepcopy(small_model("bert").model)
    assert listening.end_of_attention(model) is not None
    layers = listening.encoder_layers(model)
    layers[0] = layers[-1]
    assert listening.end_of_attention(model) is None
    inherits = type("Inherits", (type(model),), {})
    model.__class__ = inherits
    assert listening.end_of_attention(model) is None
