"""Where the parts are, for every architecture alike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForSequenceClassification

from potstill.errors import InputError
from potstill.models import anatomy
from potstill.models.builder import BuildContext
from potstill.models.safety import tensor_shapes
from potstill.models.student import load_student, save_student, stock_model
from potstill.plugins.students.fresh import Fresh
from potstill.plugins.students.keep_layers import KeepLayers
from tests.support.small_models import (
    ARCHITECTURES,
    LONGEST,
    WRITERS,
    same_weights,
    sentences,
    small_model,
    small_writer,
)
from tests.support.small_models import logits as logits_of

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


TEXTS = [text for text, _ in sentences(6, seed=3)]


def logits(student):
    return logits_of(student, TEXTS)


@every_architecture
def test_layers_and_embeddings_are_the_ones_that_run(architecture):
    student = small_model(architecture, layers=3)
    seen = []
    for layer in anatomy.encoder_layers(student.model):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(module))
    logits(student)
    assert seen == list(anatomy.encoder_layers(student.model))
    assert anatomy.layer_count(student.model) == 3
    assert anatomy.width(student.model) == 32
    assert anatomy.word_embeddings(student.model).num_embeddings == len(student.tokenizer)


def test_a_model_with_two_stacks_is_refused_by_name():
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2, eos_token_id=1)
    with pytest.raises(InputError, match=r"'t5' is not supported.*modernbert"):
        anatomy.encoder_layers(T5ForSequenceClassification(config))


@every_architecture
def test_the_longest_input_fits_and_one_more_token_does_not(architecture):
    student = small_model(architecture, layers=1)
    student.tokenizer.model_max_length = 10**30
    longest = anatomy.longest_input(student.model, student.tokenizer)
    assert longest == LONGEST
    ids = torch.full((1, longest + 1), student.tokenizer.unk_token_id)
    student.model(input_ids=ids[:, :-1])
    if architecture != "modernbert":  # rotary positions have no table to run out of
        with pytest.raises((IndexError, RuntimeError)):
            student.model(input_ids=ids)
    student.tokenizer.model_max_length = 20
    assert anatomy.longest_input(student.model, student.tokenizer) == 20


@every_architecture
def test_without_dropout_training_computes_what_evaluation_does(architecture):
    student = small_model(architecture)
    expected = logits(student)
    anatomy.set_dropout(student.model, 0.4)
    student.model.train()
    assert not torch.allclose(logits(student), expected, atol=1e-3)
    anatomy.set_dropout(student.model, 0.0)
    assert torch.equal(logits(student), expected)


@every_architecture
def test_dropout_is_in_the_config_as_well(architecture):
    """A model made anew from the config draws the same masks as the one that was changed."""
    student = small_model(architecture)
    anatomy.set_dropout(student.model, 0.3)
    again = stock_model(student.model, student.model.config, student.model.state_dict())
    drawn = []
    for model in (student.model, again):
        torch.manual_seed(5)
        model.train()
        drawn.append(logits(type(student)(model, student.tokenizer)))
    assert torch.equal(*drawn)
    assert {m.p for m in again.modules() if isinstance(m, nn.Dropout)} == {0.3}


@every_architecture
def test_attention_has_dropout_too(architecture):
    """With dropout in the attention alone, training still differs from evaluation."""
    student = small_model(architecture)
    expected = logits(student)
    anatomy.set_dropout(student.model, 0.5)
    for name, module in student.model.named_modules():
        if isinstance(module, nn.Dropout) and not name.endswith(("self.dropout", "attention.dropout", "attn.dropout")):
            module.p = 0.0
    student.model.train()
    assert not torch.allclose(logits(student), expected, atol=1e-5)


@every_architecture
def test_biases_and_norms_do_not_decay_and_nothing_else(architecture):
    model = small_model(architecture).model
    norms = {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters()
    }
    biases = {
        f"{place}.bias"
        for place, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    }
    assert norms and biases
    assert anatomy.undecayed(model) == norms | biases


@every_architecture
def test_the_parts_add_up(architecture):
    model = small_model(architecture).model
    parts = anatomy.parameters(model)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    deeper = anatomy.parameters(small_model(architecture, layers=5).model)
    last_layer = sum(parameter.numel() for parameter in anatomy.encoder_layers(model)[-1].parameters())
    assert deeper == {**parts, "layers": parts["layers"] + last_layer}
    assert parts["embeddings"] >= anatomy.word_embeddings(model).weight.numel()
    more_labels = anatomy.parameters(small_model(architecture, labels=("a", "b", "c")).model)
    assert more_labels == {**parts, "head": parts["head"] + 32 + 1}


# models that write

every_writer = pytest.mark.parametrize("architecture", WRITERS)


@every_writer
def test_parts_of_writers_add_up(architecture, tmp_path):
    student = small_writer(architecture)
    parts = anatomy.parameters(student.model)
    sines = 2 * 512 * 32 if architecture == "marian" else 0  # of both sides; they are not in its file
    assert anatomy.all_parameters(student.model) == sum(parts.values())
    assert sum(parts.values()) + sines == sum(parameter.numel() for parameter in student.model.parameters())
    save_student(student, tmp_path / "student")
    stored = tensor_shapes(tmp_path / "student/model.safetensors")
    stored.pop("final_logits_bias", None)  # a buffer
    assert sum(parts.values()) == sum(map(math.prod, stored.values()))
    more = anatomy.parameters(small_writer(architecture, layers=4).model)
    lists = [student.model.get_submodule(path) for path in anatomy.stacks(student.model)]
    assert [len(one) for one in lists] == [3] * (2 if architecture in ("marian", "t5") else 1)
    last = sum(parameter.numel() for one in lists for parameter in one[-1].parameters())
    assert more == {**parts, "layers": parts["layers"] + last}
    assert parts["embeddings"] >= 400 * 32
    assert parts["head"] == (
        400 * 32 if architecture == "llama" else 0
    )  # the others' output is the table of embeddings
    assert anatomy.layer_count(student.model) == 3 and anatomy.width(student.model) == 32
    assert anatomy.longest_input(student.model, student.tokenizer) == (LONGEST if len(lists) == 1 else 512)


@every_writer
def test_kept_layers_of_writers_are_those_that_skipping_the_others_leaves(architecture, tmp_path):
    start = small_writer(architecture)
    kept = KeepLayers([1, 3]).build(start, BuildContext(start, 0, lambda: iter(TEXTS)))
    expected = small_writer(architecture)
    for path in anatomy.stacks(expected.model):
        del expected.model.get_submodule(path)[1]
    assert torch.equal(logits(kept), logits(expected))
    save_student(kept, tmp_path / "kept")
    again = load_student(tmp_path / "kept")
    assert same_weights(again, kept) and type(again.model) is type(start.model)
    batch = start.tokenizer(TEXTS[:1], return_tensors="pt")
    assert again.model.generate(**batch, max_length=30).shape[0] == 1


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_fresh_writers_have_the_shape_that_was_asked_for(architecture, tmp_path):
    start = small_writer(architecture)
    made = Fresh(layers=2, width=24, heads=6, feed_forward=40).build(start, BuildContext(start, 0, lambda: iter(TEXTS)))
    assert type(made.model) is type(start.model)
    assert (anatomy.layer_count(made.model), anatomy.width(made.model)) == (2, 24)
    one = {
        "llama": 2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 40 + 2 * 24,
        "gpt2": 4 * 24 * 25 + 24 * 41 + 40 + 40 * 24 + 4 * 24,
    }
    assert anatomy.parameters(made.model)["layers"] == 2 * one[architecture] + {"llama": 24, "gpt2": 48}[architecture]
    save_student(made, tmp_path / "made")
    assert torch.equal(logits(load_student(tmp_path / "made")), logits(made))


@every_writer
def test_dropout_of_writers_is_in_the_config_as_well(architecture):
    student = small_writer(architecture)
    anatomy.set_dropout(student.model, 0.3)
    again = stock_model(student.model, student.model.config, student.model.state_dict())
    drawn = []
    for model in (student.model, again):
        torch.manual_seed(5)
        drawn.append(logits(type(student)(model.train(), student.tokenizer)))
    assert torch.equal(*drawn)
