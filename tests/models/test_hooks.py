"""Signals are what Hugging Face's own outputs say, for every architecture."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from potstill.errors import InputError
from potstill.models import hooks
from potstill.models.anatomy import set_dropout
from potstill.models.hooks import listen
from potstill.signals import Signals, View, Wants
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


FOUR = ("scores", "queries", "keys", "values")


def view_of(architecture: str) -> View:
    inputs = dict(small_model(architecture).tokenizer(["a charming film", "dull"], padding=True, return_tensors="pt"))
    return View(inputs, inputs["attention_mask"].bool(), torch.zeros(2, 2, dtype=torch.long))


def test_queries_keys_and_values_are_those_of_the_linear_layers() -> None:
    """Scores are their product, by head, over the root of a head's width; nothing of padding is masked."""
    model, view = small_model("bert").model.eval(), view_of("bert")
    with torch.no_grad():
        heard = listen(model, view, Wants(**dict.fromkeys(FOUR, (1, 4)), hidden=(0, 3)))
        for place, (layer, under) in enumerate(((1, 0), (4, 1))):
            part = model.base_model.encoder.layer[layer - 1].attention.self
            states = heard.hidden[:, under]
            query, key, value = part.query(states), part.key(states), part.value(states)
            torch.testing.assert_close(heard.queries[:, place], query)
            torch.testing.assert_close(heard.keys[:, place], key)
            torch.testing.assert_close(heard.values[:, place], value)
            heads, wide = model.config.num_attention_heads, query.shape[-1] // model.config.num_attention_heads
            by_head = [side.unflatten(-1, (heads, wide)).transpose(1, 2) for side in (query, key)]
            expected = torch.einsum("bhqw,bhkw->bhqk", *by_head) / wide**0.5
            torch.testing.assert_close(heard.scores[:, place], expected)


@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_scores_are_read_in_training_without_changing_it(architecture: str) -> None:
    """The logits are the same bits as without, dropout included, and the gradient reaches the layers below."""
    model, view = small_model(architecture).model, view_of(architecture)
    model.train()
    set_dropout(model, 0.1)
    torch.manual_seed(0)
    plain = listen(model, view, Wants(logits=True))
    torch.manual_seed(0)
    heard = listen(model, view, Wants(logits=True, scores=(2,)))
    assert torch.equal(heard.logits, plain.logits)
    table = model.get_input_embeddings().weight
    (gradient,) = torch.autograd.grad(heard.scores.square().sum(), [table])
    assert gradient.abs().sum() > 0


def test_what_nobody_asked_for_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass through the model for any signals; hooks for the wanted layers alone; attention as fast as ever."""
    model, view = small_model("bert").model.eval(), view_of("bert")
    calls: list[str] = []
    for name in ("eager_attention", "attention_inputs"):
        whole = getattr(hooks, name)
        monkeypatch.setattr(hooks, name, lambda *given, name=name, whole=whole: (calls.append(name), whole(*given))[1])
    seen: list[tuple[int, str]] = []
    layers = hooks.encoder_layers(model)

    def placed() -> int:  # transformers has hooks of its own for `output_attentions`
        every = (
            hook
            for part in model.modules()
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        )
        return sum(hook.__module__ == hooks.__name__ for hook in every)

    def count(_: torch.nn.Module, __: object) -> None:
        seen.append((placed(), model.config._attn_implementation))

    counting = layers[0].attention.self.query.register_forward_pre_hook(count)
    with torch.no_grad():
        for wants, hooked, slower in (
            (Wants(logits=True), 1, []),  # the one that cuts the last layer short
            (Wants(logits=True, cls=(1, 2)), 3, []),
            (Wants(hidden=(1, 2)), 2, []),
            (Wants(logits=True, hidden=(1,), **dict.fromkeys(FOUR, (2,))), 1, ["attention_inputs"]),
            (Wants(hidden=(1,), heads=(1,), attention=(2,)), 1, ["eager_attention"]),
        ):
            seen.clear(), calls.clear()
            listen(model, view, wants)
            assert seen == [(hooked, "eager" if slower == ["eager_attention"] else "sdpa")] and calls == slower
    counting.remove()
    assert placed() == 0


def test_everything_that_was_not_asked_for_is_empty() -> None:
    model, view = small_model("bert").model, view_of("bert")
    for name in vars(Signals()).keys() - {"top", "drawn"}:
        wants = Wants(**{name: True if name == "logits" else (1,)})
        heard = listen(model, view, wants)
        assert {other for other, tensor in vars(heard).items() if tensor is not None and tensor.numel()} == {name}


def test_no_empty_signals_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that transformers leaves out without an error, and scores of an attention that is not theirs."""
    view = view_of("bert")
    model = small_model("bert").model.eval()
    monkeypatch.setattr(hooks, "eager_attention", lambda _: nullcontext())  # as plain `output_attentions=True`
    for wants in (Wants(attention=(1,)), Wants(heads=(1,))):
        with pytest.raises(InputError, match="'bert' does not return its attention probabilities; use"):
            listen(model, view, wants)
    for name in FOUR:
        with pytest.raises(InputError, match=r"'mpnet' does not give its attention scores.*; use"):
            listen(small_model("mpnet").model, view_of("mpnet"), Wants(**{name: (1,)}))
        with pytest.raises(ValueError, match="layer 0"):
            Wants(**{name: (0, 1)})
