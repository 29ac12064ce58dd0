"""Signals are what Hugging Face's own outputs say, for every architecture."""

from __future__ import annotations

import pytest
import torch
from small import ARCHITECTURES, sentences, small_model

from potstill.listening import listen
from potstill.signals import View, Wants


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
