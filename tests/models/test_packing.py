"""A packed batch gives the signals, losses and gradients of the padded one; the head is computed where it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForMaskedLM

from potstill.models import packing
from potstill.models.hooks import listen
from potstill.models.packing import PACKABLE, Packing, packing_of
from potstill.signals import View, Wants
from tests.support.small_models import ARCHITECTURES, sentences, small_model
from tests.support.training_world import loss_and_norm, make_world

NEVER, ALWAYS = 2.0, -1.0  # shares of padding


def view_of(architecture: str, rows: int = 8) -> View:
    tokenizer = small_model(architecture).tokenizer
    inputs = dict(tokenizer([text for text, _ in sentences(rows, 0)], padding=True, return_tensors="pt"))
    at = torch.tensor([[row, 1 + row % 2] for row in range(rows)] + [[3, 3]])
    return View(inputs, inputs["attention_mask"].bool(), at)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_is_padded_in_every_signal_and_in_the_gradient(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, view = small_model(architecture, head="MaskedLM").model.double(), view_of(architecture)
    wants = Wants(logits=True, cls=(0, 2), hidden=(4,), **({} if architecture == "mpnet" else {"queries": (1,)}))
    found: list[list[Tensor]] = []
    for worth in (NEVER, ALWAYS):
        monkeypatch.setattr(packing, "WORTH", worth)
        assert (packing_of(model, view, wants) is not None) == (worth == ALWAYS and architecture in PACKABLE)
        model.zero_grad()
        heard = listen(model, view, wants)
        parts = [heard.logits, heard.cls, heard.hidden[:, 0][view.real]]
        parts += [heard.queries[:, 0][view.real]] if wants.queries else []
        loss = torch.stack([part.sin().sum() for part in parts]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        found.append([*parts, loss, torch.stack(gradients).norm()])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["hard_labels", "distilbert", "relations"])
def test_a_step_on_packed_rows_is_that_on_padded_ones(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In loss and gradient norm, for the student and for the live teacher; of one micro-batch or of several."""
    world = make_world(tmp_path, task="mask", width=24)
    world.student.model.config.hidden_dropout_prob = 0.0
    training = world.training(method, world.live(), batch=16)
    for model in training.models:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    found = []
    for worth, tokens in ((NEVER, 4096), (ALWAYS, 4096), (ALWAYS, 60)):
        monkeypatch.setattr(packing, "WORTH", worth)
        object.__setattr__(training, "stage", training.stage.model_copy(update={"tokens": tokens}))
        found.append(loss_and_norm(training, precise=True))
    assert found[1] == pytest.approx(found[0], rel=1e-9)
    assert found[2] == pytest.approx(found[0], rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_what_is_packed_comes_back_and_its_gradient_too(lengths: list[int], seed: int) -> None:
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    made = Packing.of(real)
    padded = torch.randn(*real.shape, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    packed = made.pack(padded)
    assert torch.equal(packed[0], padded[real]) and torch.equal(made.unpack(packed)[real], padded[real])
    weights = torch.arange(packed.numel()).view(packed.shape) / 7
    (ours,) = torch.autograd.grad((packed * weights).sum(), padded)
    (theirs,) = torch.autograd.grad((padded[real] * weights[0]).sum(), padded)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_sees_the_places_that_are_read_and_nothing_else(architecture: str) -> None:
    """None at all where no logits are wanted; the logits are those of the whole model, bit for bit up to the product's order."""
    student, view = small_model(architecture, head="MaskedLM"), view_of(architecture)
    output = student.model.get_output_embeddings()
    seen: list[int] = []
    hook = output.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[:-1].numel()))
    with torch.inference_mode():
        heard = listen(student.model, view, Wants(logits=True))
        listen(student.model, view, Wants(hidden=(1,)))
        hook.remove()
        whole: Any = student.model(**view.inputs).logits
    assert seen == [len(view.at), 0]
    torch.testing.assert_close(heard.logits, whole[view.at[:, 0], view.at[:, 1]], rtol=1e-5, atol=1e-5)
    assert not any(module._forward_hooks for module in student.model.modules())


def test_an_attention_that_packing_does_not_know_is_padded() -> None:
    model = AutoModelForMaskedLM.from_config(small_model("bert").model.config, attn_implementation="eager")
    assert packing_of(model, view_of("bert"), Wants()) is None
    assert packing_of(small_model("bert", head="MaskedLM").model, view_of("bert"), Wants(heads=(1,))) is None
    assert packing_of(small_model("bert").model, view_of("bert"), Wants()) is None  # a classifier
