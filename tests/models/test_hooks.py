"""Signals are what Hugging Face's own outputs say, for every architecture."""

from __future__ import annotations

import pytest
import torch

from potstill.models.anatomy import set_dropout
from potstill.models.hooks import listen
from potstill.signals import View, Wants
from tests.support.small_models import ARCHITECTURES, sentences, small_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_are_counted_as_in_hidden_states(architecture: str) -> None:
    student = small_model(architecture)
    inputs = dict(student.tokenizer([text for text, _ in sentences(4, 0)], padding=True, return_tensors="pt"))
    at = torch.tensor([[row, 0] for row in range(4)])
    with torch.inference_mode():
        expected = student.model(**inputs, output_hidden_states=True)
        wants = Wants(logits=True, cls=(3, 0, 1), hidden=(2,))
        heard = listen(student.model, View(inputs, inputs["attention_mask"].bool(), at), wants)
    assert torch.equal(heard.logits, expected.logits)
    assert torch.equal(heard.cls, torch.stack([expected.hidden_states[layer][:, 0] for layer in (3, 0, 1)], 1))
    assert torch.equal(heard.hidden[:, 0], expected.hidden_states[2])


def test_what_was_not_asked_for_is_empty_and_no_hook_stays() -> None:
    student = small_model("bert")
    inputs = dict(student.tokenizer(["a good film"], return_tensors="pt"))
    heard = listen(
        student.model,
        View(inputs, inputs["attention_mask"].bool(), torch.zeros(1, 2, dtype=torch.long)),
        Wants(cls=(1,)),
    )
    assert heard.logits.numel() == 0 and heard.hidden.numel() == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.model.modules())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_is_that_of_transformers_and_nothing_of_it_is_dropped(architecture: str) -> None:
    """In training mode too; the first layer is 1; afterwards the model is as it was."""
    model = small_model(architecture).model
    inputs = dict(small_model(architecture).tokenizer(["a charming film", "dull"], padding=True, return_tensors="pt"))
    real = inputs["attention_mask"].bool()
    view = View(inputs, real, torch.zeros(2, 2, dtype=torch.long))
    model.train()
    set_dropout(model, 0.0)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        theirs = model(**inputs, output_attentions=True).attentions
    model.config._attn_implementation = "sdpa"
    set_dropout(model, 0.5)
    before = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    with torch.no_grad():
        first = listen(model, view, Wants(attention=(1,))).attention
        last = listen(model, view, Wants(attention=(4,))).attention
    rows = first[:, 0].sum(-1)[real]
    assert torch.allclose(rows, torch.ones_like(rows), atol=1e-5)
    assert (first[:, 0][~real[:, None].expand(-1, first.shape[-1], -1)] == 0).all()
    assert not torch.allclose(first, last)
    model.eval()
    with torch.no_grad():
        ours = listen(model, view, Wants(attention=(1, 3))).attention
    for place, layer in enumerate((1, 3)):
        assert torch.allclose(ours[:, place][real], theirs[layer - 1].mean(1)[real], atol=1e-6)
    assert model.config._attn_implementation == "sdpa"
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == before
