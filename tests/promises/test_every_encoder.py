"""What holds for every architecture of transformers that can be built small, not for a list of those that were tried."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from potstill.errors import InputError
from potstill.models.anatomy import KEY_BIAS, encoder_layers, has_layers, is_causal, without_effect
from potstill.models.architectures.registration import PREFIX
from potstill.models.builder import BuildContext
from potstill.models.fingerprints import fingerprint
from potstill.models.hooks import listen
from potstill.models.loading import quiet_transformers, refuse_padding_effect
from potstill.models.student import Student
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.signals import View, Wants
from tests.support.encoders import PADDING, asked, built, encoders, texts
from tests.support.small_models import small_tokenizer

KEPT = [1, 4]  # ends of most patterns of layers


def test_most_architectures_are_tried() -> None:
    """And what cannot be built small is counted."""
    found = encoders()
    left = {kind: reason for kind, reason in found.items() if isinstance(reason, str)}
    print(f"{len(found) - len(left)} of {len(found)} architectures; not built: {left}")
    assert len(built()) >= 80 and {"longformer", "gpt2", "qwen2", "xlnet", "roformer", "deberta-v2"} <= built().keys()


def kept(model: PreTrainedModel) -> Student:
    whole = Student(model, small_tokenizer("bert"))
    return KeepLayers(KEPT).build(whole, BuildContext(whole, 0, lambda: iter(())))


def test_layers_can_be_kept_and_the_student_comes_back_from_its_folder(tmp_path: Path) -> None:
    """Every list with an entry for each layer follows, or the model is refused with a reason."""
    refused = {}
    for kind, model in built().items():
        if kind.startswith(PREFIX):
            continue
        try:
            student = kept(model).model
        except InputError as error:
            refused[kind] = str(error)
            continue
        said = asked(student, texts())
        lists = {
            name: value for name, value in vars(model.config).items() if isinstance(value, list) and len(value) == 4
        }
        for name, value in lists.items():
            if name != "attention_types":
                assert getattr(student.config, name) == [value[layer - 1] for layer in KEPT], (kind, name)
        with quiet_transformers():
            student.save_pretrained(tmp_path / kind)
            again = AutoModelForSequenceClassification.from_pretrained(tmp_path / kind).eval()
        torch.testing.assert_close(asked(again, texts()), said, msg=kind)
    print(f"refused: {refused}")
    assert len(refused) <= 5 and not {"longformer", "gpt_neo", "qwen3_next"} & refused.keys()
    assert built()["longformer"].config.attention_window == [4, 8, 8, 4]


def test_what_is_frozen_has_no_effect_and_key_biases_that_have_one_are_trained() -> None:
    """Moved by as much as they like, frozen parameters change no answer; so far as they change any, they are trained."""
    for kind, model in built().items():
        before = asked(model, texts())
        biases = [parameter for name, parameter in model.named_parameters() if KEY_BIAS.search(name)]
        kept_back = [parameter.detach().clone() for parameter in biases]
        with torch.no_grad():
            for parameter in biases:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
            moved = bool(((asked(model, texts()) - before).abs() > 1e-4).any())
            for parameter, value in zip(biases, kept_back, strict=True):
                parameter.copy_(value)
        assert (len(without_effect([model])) == 0) == (moved or not biases), kind
    bert, qwen = built()["bert"], built()["qwen2"]
    assert len(without_effect([bert, qwen])) == len(without_effect([bert])) == 4


def test_a_text_is_stood_for_by_a_token_that_has_seen_all_of_it() -> None:
    """Two texts that begin alike have different states, in every layer, whatever stands behind them as padding."""
    long, other = texts(), texts()
    other[:, 6:] = texts(seed=1)[:, 6:]
    real = torch.ones_like(long, dtype=torch.bool)
    real[:, 10:] = False
    wide = torch.where(real, long, PADDING), torch.where(real, other, PADDING)
    for kind, model in built().items():
        if not has_layers(model) or kind == "mra":  # which says nothing at all without a GPU
            continue
        try:
            layers = len(encoder_layers(model))
        except InputError:
            continue
        if kind == "squeezebert":  # its states stand in another order of axes
            continue
        wants = Wants(cls=tuple(range(1, layers + 1)))

        def heard(
            ids: torch.Tensor, there: torch.Tensor, model: PreTrainedModel = model, wants: Wants = wants
        ) -> torch.Tensor:
            at = torch.tensor([[row, 0] for row in range(len(ids))])
            with torch.no_grad():
                view = View({"input_ids": ids, "attention_mask": there.long()}, there, at)
                return listen(model, view, wants).cls

        ours, theirs = (heard(ids, real) for ids in wide)
        assert bool(((ours - theirs).abs().amax(-1) > 1e-6).all()), kind
        if is_causal(model):
            short = real[:, :10]
            torch.testing.assert_close(ours, heard(long[:, :10], short), rtol=1e-3, atol=1e-4, msg=kind)


def test_memories_of_a_causal_classifier_are_not_those_of_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built()["gpt2"]
    now = fingerprint(model, "", 64)
    monkeypatch.setattr("potstill.models.fingerprints.is_causal", lambda _: False)
    assert fingerprint(model, "", 64) != now


def test_a_classifier_whose_answers_move_with_padding_is_refused() -> None:
    """XLNet reads the last place of the batch."""
    tokenizer = small_tokenizer("bert")
    moved = set()
    for kind in ("xlnet", "bert", "gpt2", "electra", "mpnet"):
        model = copy.deepcopy(built()[kind])
        model.resize_token_embeddings(len(tokenizer))
        try:
            refuse_padding_effect("folder", model, tokenizer)
        except InputError as error:
            assert "use an encoder such as bert" in str(error)
            moved.add(kind)
    assert moved == {"xlnet"}


def test_scores_are_those_of_the_attention_that_transformers_returns() -> None:
    """Their softmax over the tokens that are not masked is the probability of each head, or the model is refused."""
    ids = texts()
    real = torch.arange(ids.shape[1]) < torch.tensor([12, 8, 5])[:, None]
    view = View({"input_ids": ids, "attention_mask": real.long()}, real, torch.zeros(3, 2, dtype=torch.long))
    layers, refused = (1, 3), {}
    for kind, model in built().items():
        try:
            with torch.no_grad():
                alone = listen(model, view, Wants(scores=layers, keys=layers))
                heard = listen(model, view, Wants(scores=layers, heads=layers))
        except InputError as error:
            refused[kind] = str(error)
            continue
        masked = heard.heads == 0
        found = heard.scores.masked_fill(masked, -torch.inf).softmax(-1)
        rows = real[:, None, None, :, None].expand_as(found)
        torch.testing.assert_close(found[rows], heard.heads[rows], rtol=0, atol=1e-5, msg=kind)
        torch.testing.assert_close(alone.scores[rows], heard.scores[rows], rtol=1e-4, atol=1e-4, msg=kind)
        assert alone.keys.shape[:3] == (3, 2, 12), kind
    print(f"{len(built()) - len(refused)} of {len(built())} give their scores; refused: {refused}")
    known = {
        "bert",
        "roberta",
        "electra",
        "distilbert",
        "modernbert",
        "mobilebert",
        "gpt2",
        "llama",
        "qwen2",
        "gpt_bigcode",
    }
    assert not known & refused.keys() and len(built()) - len(refused) >= 60
    assert {"mpnet", "deberta-v2", "gemma2", "gpt_oss"} <= refused.keys()  # a bias, a cap or a sink beside q·k
    assert all("; use" in reason for reason in refused.values())
