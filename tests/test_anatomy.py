"""Where the parts are, for every architecture alike."""

from __future__ import annotations

import pytest
import torch
from small import ARCHITECTURES, LONGEST, sentences, small_model
from small import logits as logits_of
from torch import nn
from transformers import T5Config, T5ForSequenceClassification

from potstill import anatomy
from potstill.errors import InputError
from potstill.students import stock_model

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
