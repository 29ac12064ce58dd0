"""ALBERT students: one layer at every depth, narrow embeddings, and all that potstill reads of a network's layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AlbertForMaskedLM, AlbertForSequenceClassification

from potstill.errors import InputError
from potstill.models.anatomy import encoder_layers, layer_count, shares_layers, stored_layers
from potstill.models.architectures.reshaped import ReshapedModel
from potstill.models.attention import eager_attention
from potstill.models.builder import BuildContext, Builder, Student
from potstill.models.compression.factorised_tables import narrow_tables
from potstill.models.hooks import listen
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import load_student, save_student
from potstill.plugins.students.clustered import Clustered
from potstill.plugins.students.dropped_layers import DroppedLayers
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.plugins.students.low_rank import LowRank
from potstill.plugins.students.pruned_heads import PrunedHeads
from potstill.plugins.students.pruned_neurons import PrunedNeurons
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.plugins.students.shared_layers import SharedLayers
from potstill.plugins.students.trim_vocabulary import TrimVocabulary
from potstill.recipe import plugins
from potstill.runs.planning.batches import Batches
from potstill.runs.planning.flops import forward
from potstill.signals import View, Wants
from potstill.training.loop import train
from tests.support.small_models import logits, same_weights, sentences, small_model
from tests.support.training_world import CASES, World, make_world, stopped_and_resumed

TEXTS = [text for text, _ in sentences(12, seed=1)]
BERT_LAYER, LAYER = "bert.encoder.layer", "albert.encoder.albert_layer_groups.0.albert_layers.0"


def context(start: Student) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(TEXTS))


def albert(embedding: int = 16, layers: int = 4) -> Student:
    start = small_model("bert", layers=layers)
    return SharedLayers(embedding=embedding).build(start, context(start))


def states(student: Student) -> tuple[Tensor, ...]:
    """The hidden states that transformers returns: (batch, tokens, width) of the embeddings and every layer."""
    batch = student.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        said: tuple[Tensor, ...] = student.model(**batch, output_hidden_states=True).hidden_states
    return said


def test_it_is_a_stock_albert_of_the_size_that_its_shape_says() -> None:
    built = albert(embedding=16)
    assert type(built.model) is AlbertForSequenceClassification
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    embeddings = (len(built.tokenizer) + 64 + 2 + 2) * 16 + 16 * 32 + 32  # tables, norm and map
    head = 32 * 32 + 32 + 2 * 32 + 2
    assert sum(parameter.numel() for parameter in built.model.parameters()) == layer + embeddings + head
    assert built.model.config.num_hidden_layers == 4 and built.model.config.num_hidden_groups == 1


def test_a_teacher_whose_layers_are_all_the_same_is_begun_as_itself() -> None:
    """With embeddings as wide as its states, nothing is lost: every hidden state and all logits are the teacher's."""
    start = small_model("bert")
    with torch.no_grad():
        for layer in encoder_layers(start.model)[1:]:
            layer.load_state_dict(encoder_layers(start.model)[0].state_dict())
    for builder in (SharedLayers(embedding=32), SharedLayers(3, embedding=32)):
        built = builder.build(start, context(start))
        torch.testing.assert_close(logits(built, TEXTS), logits(start, TEXTS), rtol=0, atol=2e-5)
        for ours, theirs in zip(states(built), states(start), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5)


def test_the_layer_is_the_mean_or_the_one_that_is_named() -> None:
    start = small_model("bert")
    mean, third = (SharedLayers(layer, embedding=16).build(start, context(start)) for layer in ("mean", 3))  # type: ignore[arg-type]
    theirs = torch.stack([layer.get_parameter("output.dense.weight") for layer in encoder_layers(start.model)])
    torch.testing.assert_close(mean.model.get_parameter(f"{LAYER}.ffn_output.weight"), theirs.mean(0))
    assert torch.equal(third.model.get_parameter(f"{LAYER}.ffn_output.weight"), theirs[2])
    assert torch.equal(third.model.classifier.weight, start.model.classifier.weight)
    assert torch.equal(third.model.albert.pooler.weight, start.model.bert.pooler.dense.weight)
    assert layer_count(SharedLayers(layers=7, embedding=16).build(start, context(start)).model) == 7


@given(size=st.integers(2, 12), seed=st.integers(0, 100), gains=st.booleans())
@settings(deadline=None, max_examples=40)
def test_narrow_tables_are_nearer_the_wider_they_are(size: int, seed: int, gains: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    words, positions = (torch.randn(rows, 12, generator=draw, dtype=torch.float64) for rows in (40, 6))
    norm = nn.LayerNorm(12).double()
    if gains:
        nn.init.uniform_(norm.weight, 0.5, 1.5, generator=draw)
        nn.init.normal_(norm.bias, generator=draw)
    wide = norm((words[:, None] + positions).flatten(0, 1)).detach()

    def error(size: int) -> float:
        found = narrow_tables(words, [positions], norm, size)
        tables = (found.tables[0][:, None] + found.tables[1]).flatten(0, 1)
        assert tables.shape == (240, size)
        torch.testing.assert_close(tables.mean(1), torch.zeros(240).double(), rtol=0, atol=1e-9)
        ours = nn.functional.layer_norm(tables, (size,), eps=norm.eps) @ found.matrix.T + found.bias
        return float((ours - wide).square().sum() / (wide - norm.bias.detach()).square().sum())

    assert error(size) <= 1.0
    assert error(12) < (0.05 if gains else 1e-8)
    if size <= 8:
        assert error(size + 4) < error(size)


def test_a_masked_language_model_keeps_its_encoder_and_ties_its_table() -> None:
    start = small_model("bert", labels=("LABEL_0", "LABEL_1"), head="MaskedLM")
    built = SharedLayers(embedding=16).build(start, context(start))
    assert type(built.model) is AlbertForMaskedLM
    assert built.model.predictions.decoder.weight is built.model.albert.embeddings.word_embeddings.weight
    assert torch.equal(built.model.predictions.bias, start.model.cls.predictions.bias)
    again, other = (
        SharedLayers(embedding=16).build(start, BuildContext(start, seed, lambda: iter(()))) for seed in (0, 1)
    )
    assert same_weights(built, again) and not same_weights(built, other)  # the head has random weights


def test_what_is_no_bert_or_names_no_layer_is_refused() -> None:
    start = small_model("bert", layers=2)
    with pytest.raises(InputError, match=r"write a number from 1 to 2"):
        SharedLayers(3).build(start, context(start))
    with pytest.raises(InputError, match=r"write at most 32"):
        SharedLayers(embedding=64).build(start, context(start))
    for other in (small_model("roberta"), small_model("bert", head="PreTraining"), albert()):
        with pytest.raises(InputError, match=r"shared_layers: shapes a BERT, not a \w+; write"):
            SharedLayers().build(other, context(other))


# what potstill reads of a network with shared layers


def test_every_use_of_the_layer_is_a_layer_to_be_listened_to() -> None:
    built = albert()
    assert shares_layers(built.model) and layer_count(built.model) == 4 and len(stored_layers(built.model)) == 1
    batch = built.tokenizer(TEXTS, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    at = torch.stack([torch.arange(len(TEXTS)), torch.zeros(len(TEXTS), dtype=torch.long)], 1)
    view = View(dict(batch), real, at)
    expected = states(built)
    for _ in range(2):  # calls are counted within one pass
        found = listen(built.model, view, Wants(hidden=(0, 1, 3, 4), cls=(2,), heads=(1, 4), scores=(2, 4)))
        for place, layer in enumerate((0, 1, 3, 4)):
            torch.testing.assert_close(found.hidden[:, place], expected[layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(found.cls[:, 0], expected[2][:, 0], rtol=0, atol=1e-5)
    attention = listen(built.model, view, Wants(heads=(2, 4))).heads
    masked = found.scores.masked_fill(
        ~real[:, None, None, None, :], -torch.inf
    )  # (batch, layers, heads, tokens, tokens)
    torch.testing.assert_close(masked.softmax(-1), attention, rtol=0, atol=1e-5)


def test_operations_are_those_that_torch_counts() -> None:
    student = albert()
    longest = max(map(len, student.tokenizer(TEXTS)["input_ids"]))
    sizes = (np.array([size]) for size in (len(TEXTS), longest, 0, 0, 0))
    with eager_attention(student.model), FlopCounterMode(display=False) as counter:
        logits(student, TEXTS)
    planned = forward(student.model, Batches([np.arange(len(TEXTS))], *sizes))[0]
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.03)


AFTER: dict[str, Builder] = {
    "keep_layers": KeepLayers("skip:2"),
    "dropped_layers": DroppedLayers(2),
    "trim_vocabulary": TrimVocabulary(),
    "pruned_neurons": PrunedNeurons(0.5),
    "pruned_weights": PrunedWeights(0.6),
    "clustered": Clustered(8, 16),
    "low_rank": LowRank(0.5),
}


@pytest.mark.parametrize("name", AFTER)
def test_other_builders_shape_it(name: str, tmp_path: Path) -> None:
    start = albert()
    built = AFTER[name].build(start, context(start))
    save_student(built, tmp_path / "student")
    again = load_student(tmp_path / "student")
    assert same_weights(again, built) and torch.equal(logits(again, TEXTS), logits(built, TEXTS))
    assert isinstance(built.model, ReshapedModel) == (name == "low_rank")
    assert layer_count(built.model) == (2 if "layers" in name else 4)
    if "layers" in name:
        for ours, theirs in zip(states(built), states(start), strict=False):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    smaller = sum(p.numel() for p in built.model.parameters()) < sum(p.numel() for p in start.model.parameters())
    assert smaller == (name in ("trim_vocabulary", "pruned_neurons", "low_rank"))


def test_heads_that_all_depths_share_are_not_removed() -> None:
    start = albert()
    with pytest.raises(InputError, match="pruned_heads: the heads of a albert cannot be removed"):
        PrunedHeads().build(start, context(start))


# training and exports


def albert_world(folder: Path) -> World:
    world = make_world(folder, layers=3)
    world.student = SharedLayers(embedding=16).build(world.student, BuildContext(world.teacher, 0, lambda: iter(TEXTS)))
    return world


@pytest.mark.parametrize("method", [method for method, task in CASES if task == "classify"])
def test_every_method_trains_it(method: str, tmp_path: Path) -> None:
    world = albert_world(tmp_path)
    before = {name: weight.clone() for name, weight in world.student.model.state_dict().items()}
    optimizer = {"name": "adamw", "rate": 1e-3, "warmup": 0.0, "decay": "constant"}
    steps = list(train(world.training(method, world.live(), optimizer=optimizer, keep="last")))
    assert np.isfinite([step.loss for step in steps]).all()
    name = f"{LAYER}.attention.value.weight"
    assert not torch.equal(world.student.model.get_parameter(name), before[name])


def test_a_stopped_stage_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(albert_world, tmp_path, "patient", (2, 7))
    assert difference == 0 and changed


@pytest.mark.parametrize("export", ["onnx", "int8"])
def test_exported_it_gives_the_same_answers(export: str, tmp_path: Path) -> None:
    student = albert()
    rows = [(text, None) for text in TEXTS]
    plugins.make("exports", export, {}).export(student, tmp_path / "out", rows)
    network, run = load_network(tmp_path / "out"), torch_forward(student.model)
    inputs = sample_inputs(student, 7, 20, 0)
    assert np.abs(network.forward(inputs) - run(inputs)).max() <= (1e-5 if export == "onnx" else 0.3)
