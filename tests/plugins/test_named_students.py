"""The students that papers name: what they keep of the network that they begin from, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MobileBertConfig, MobileBertModel

from potstill.errors import InputError
from potstill.models.anatomy import undecayed
from potstill.models.builder import BuildContext
from potstill.models.hooks import listen
from potstill.models.student import Student
from potstill.plugins.students.distilbert import DistilBert
from potstill.plugins.students.mobilebert import MobileBert
from potstill.signals import View, Wants
from tests.support.small_models import sentences, small_model

TEXTS = [text for text, _ in sentences(12, seed=1)]
HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice", "MaskedLM")


def context(start: Student) -> BuildContext:
    return BuildContext(start=start, seed=0, texts=lambda: iter(TEXTS))


# distilbert


def test_the_embeddings_of_a_text_are_those_of_bert() -> None:
    start = small_model("bert")
    made = DistilBert().build(start, context(start))
    ids = start.tokenizer(TEXTS, padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        ours, theirs = (student.model.base_model.embeddings(input_ids=ids) for student in (made, start))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert start.model.bert.embeddings.token_type_embeddings.weight[0].abs().max() > 0.01


@pytest.mark.parametrize("head", HEADS)
def test_with_all_layers_it_computes_what_bert_computes(head: str) -> None:
    """Also with the heads over tokens; those over the pooler have another activation."""
    start = small_model("bert", head=head)
    made = DistilBert([1, 2, 3, 4]).build(start, context(start))
    batch = start.tokenizer(TEXTS, padding=True, return_tensors="pt")
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        states = [each.model.base_model(**given).last_hidden_state for each in (made, start)]
        torch.testing.assert_close(*states, rtol=0, atol=1e-5)
        if head in ("SequenceClassification", "MultipleChoice"):
            assert torch.equal(made.model.pre_classifier.weight, start.model.bert.pooler.dense.weight)
            assert torch.equal(made.model.classifier.weight, start.model.classifier.weight)
        else:
            ours, theirs = made.model(**given), start.model(**given)
            for name in ("logits", "start_logits"):
                if name in theirs:
                    torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)
    assert "token_type_ids" not in made.tokenizer.model_input_names


@pytest.mark.parametrize(
    ("layers", "count", "kept"),
    [
        ("paper", 12, [2, 4, 6, 8, 10, 12]),
        ("script", 12, [1, 3, 5, 8, 10, 12]),
        ("script", 6, [1, 4, 6]),
        ("script", 2, [2]),
        ("paper", 1, [1]),
        ("paper", 5, [2, 5]),
        ([2, 5], 6, [2, 5]),
    ],
)
def test_which_layers_are_kept(layers: str, count: int, kept: list[int]) -> None:
    assert DistilBert(layers).kept(count) == kept  # type: ignore[arg-type]


def test_its_norms_and_biases_never_decay() -> None:
    start = small_model("bert", head="MaskedLM")
    model = DistilBert().build(start, context(start)).model
    without = undecayed(model)
    assert {name for name, _ in model.named_parameters() if "norm" in name.lower() or name.endswith("bias")} == without


@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "modernbert"])
def test_what_is_no_bert_is_refused(architecture: str) -> None:
    start = small_model(architecture)
    with pytest.raises(InputError, match=r"distilbert: shapes a BERT, .*; write student = 'keep_layers"):
        DistilBert().build(start, context(start))


# mobilebert

SMALL = {"layers": 2, "width": 32, "bottleneck": 16, "feed_forward": 32, "stacked": 2, "embedding": 16}
WIDE = {"bottleneck": 64, "feed_forward": 128, "stacked": 1, "norm": "layer", "activation": "gelu"}


def mobile(**fields: Any) -> MobileBert:
    return MobileBert(**{**SMALL, **fields})


def test_the_published_shape_has_the_published_size() -> None:
    """About 25 million; without the pooler, which the published model does not train."""
    with torch.device("meta"):
        model = MobileBertModel(MobileBertConfig(), add_pooling_layer=False)
    start = small_model("bert")
    made = MobileBert(layers=1).build(start, context(start)).model.config
    same = ("hidden_size", "intra_bottleneck_size", "intermediate_size", "num_feedforward_networks", "embedding_size")
    same += ("num_attention_heads", "normalization_type", "hidden_act", "key_query_shared_bottleneck", "trigram_input")
    assert all(getattr(made, name) == getattr(model.config, name) for name in same)
    assert sum(parameter.numel() for parameter in model.parameters()) == 24_581_888


def test_its_teacher_has_feature_maps_and_heads_of_the_same_size() -> None:
    start = small_model("bert", head="MaskedLM")
    teacher = mobile(**WIDE).build(start, context(start))
    student = mobile().build(teacher, context(teacher))
    ids = start.tokenizer(TEXTS, padding=True, return_tensors="pt")
    view = View(dict(ids), ids["attention_mask"].bool(), torch.zeros(1, 2, dtype=torch.long))
    with torch.no_grad():
        ours, theirs = (listen(each.model, view, Wants(hidden=(1, 2), heads=(1, 2))) for each in (student, teacher))
    assert ours.hidden.shape == theirs.hidden.shape and ours.heads.shape == theirs.heads.shape
    assert sum(p.numel() for p in student.model.parameters()) < sum(p.numel() for p in teacher.model.parameters())


def test_from_its_teacher_it_takes_embeddings_and_head() -> None:
    start = small_model("bert", head="MaskedLM")
    teacher = mobile(**WIDE).build(start, context(start))
    student = mobile().build(teacher, context(teacher))
    ours, theirs = student.model.state_dict(), teacher.model.state_dict()
    taken = {name for name in ours if name in theirs and torch.equal(ours[name], theirs[name])}
    for part in ("embeddings.word_embeddings.weight", "embeddings.embedding_transformation.weight"):
        assert f"mobilebert.{part}" in taken
    assert "cls.predictions.transform.dense.weight" in taken
    assert not any(name.startswith("mobilebert.encoder") and name.endswith("dense.weight") for name in taken)
    made_anew = mobile().build(start, context(start)).model.state_dict()
    assert not torch.equal(
        made_anew["cls.predictions.transform.dense.weight"], ours["cls.predictions.transform.dense.weight"]
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bottleneck": 18}, r"write heads = 1, or bottleneck = 16"),
        ({"embedding": 33}, r"write embedding = 32"),
    ],
)
def test_shapes_that_cannot_be_are_refused(fields: dict[str, int], message: str) -> None:
    start = small_model("bert")
    with pytest.raises(InputError, match=message):
        mobile(**fields).build(start, context(start))
