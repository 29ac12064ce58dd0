"""Masked tokens and the next sentence in one step: two groups of predictions, each averaged over its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from potstill.data.batches import MicroBatch
from potstill.errors import InputError
from potstill.models.hooks import listen
from potstill.plugins.methods.hard_labels import HardLabels
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import Batch, View, Wants, group_weights
from potstill.system.randomness import seeded
from potstill.training.gradients import gradients
from potstill.training.losses import soft_targets
from potstill.training.method import Method
from potstill.training.setup import Training, make_projections
from potstill.training.teacher.teacher import Teacher
from tests.support.training_world import CPU, World, make_world, norm_of

LENGTHS = (12, 12, 10, 9, 7, 7, 5, 4)
WORDS, IGNORED = 60, -100


def network(seed: int) -> BertForPreTraining:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip
    with seeded(seed):
        return BertForPreTraining(config).double()


def rows() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Inputs, the labels of transformers (one to three masked tokens in a text), and whether the second text is the next."""
    random = torch.Generator().manual_seed(0)
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(3, WORDS, real.shape, generator=random).masked_fill(~real, 0)
    labels = torch.full_like(ids, IGNORED)
    for row, length in enumerate(LENGTHS):
        places = torch.randperm(length, generator=random)[: 1 + row % 3]
        labels[row, places] = torch.randint(3, WORDS, (len(places),), generator=random)
    return {"input_ids": ids, "attention_mask": real.long()}, labels, torch.arange(len(LENGTHS)) % 2


def batch_of_rows(begin: int, end: int) -> Batch:
    inputs, labels, following = rows()
    longest = LENGTHS[begin]
    given = {name: tensor[begin:end, :longest] for name, tensor in inputs.items()}
    masked, masked_of_step = (labels[begin:end] != IGNORED).nonzero(), int((labels != IGNORED).sum())
    texts, texts_of_step = end - begin, len(LENGTHS)
    first = torch.stack([torch.arange(texts), torch.zeros(texts, dtype=torch.long)], 1)
    view = View(given, given["attention_mask"].bool(), masked, also_at=first)
    count = len(masked) + texts
    every = torch.ones(count, dtype=torch.bool)
    return Batch(
        keys=torch.arange(begin, end),
        student=view,
        teacher=view,
        targets=torch.cat([labels[begin:end][labels[begin:end] != IGNORED], following[begin:end]]),
        labelled=every,
        taught=torch.ones(texts, dtype=torch.bool),
        taught_predictions=every,
        counts={"examples": texts_of_step, "predictions": masked_of_step + texts_of_step, "tokens": sum(LENGTHS)},
        outcome="class",
        weights=group_weights((len(masked), texts), (masked_of_step, texts_of_step)),
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def training_of(world: World, method: Method) -> Training:
    made = world.training("hard_labels", world.live())
    teacher = Teacher(network(1), None, CPU)
    return Training(**{**vars(made), "models": [network(0).train()], "teachers": [teacher], "method": method})


def step(training: Training, parts: int) -> tuple[float, float]:
    """Loss and gradient norm of all texts in micro-batches of as many."""
    model, each = training.models[0], len(LENGTHS) // parts
    model.zero_grad(set_to_none=True)
    batches = [MicroBatch(n, 0, batch_of_rows(n * each, (n + 1) * each)) for n in range(parts)]
    projections = make_projections(training)
    terms = gradients(training, projections, batches, 0)
    return sum(terms.values()), norm_of(model, projections)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_a_step_is_the_sum_of_both_losses_of_transformers(parts: int, world: World) -> None:
    """In loss and gradient norm, however it is cut: groups of other sizes in every micro-batch."""
    training = training_of(world, HardLabels())
    inputs, labels, following = rows()
    model = training.models[0]
    loss = model(**inputs, labels=labels, next_sentence_label=following).loss
    loss.backward()
    expected = float(loss.detach()), norm_of(model, nn.Module())  # type: ignore[arg-type]
    assert step(training, parts) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("parts", [2, 8])
def test_soft_targets_take_both_heads_of_the_teacher(parts: int, world: World) -> None:
    """Each group against its own classes, averaged over its own predictions; cut as one likes."""
    training = training_of(world, SoftTargets(temperature=2.0, alpha=1.0))
    inputs, labels, _ = rows()
    with torch.no_grad():
        ours, theirs = (side(**inputs) for side in (training.models[0], training.teachers[0].model))
    masked = labels != IGNORED
    words = soft_targets(ours.prediction_logits[masked], theirs.prediction_logits[masked], 2.0).mean()
    pairs = soft_targets(ours.seq_relationship_logits, theirs.seq_relationship_logits, 2.0).mean()
    whole = step(training, 1)
    assert whole[0] == pytest.approx(float(words + pairs), rel=1e-6)
    assert step(training, parts) == pytest.approx(whole, rel=1e-6)


def test_a_model_with_one_head_is_refused() -> None:
    batch = batch_of_rows(0, 2)
    with pytest.raises(InputError, match="two heads, and a model has one; use one for pre-training"):
        listen(BertForMaskedLM(network(0).config).double(), batch.student, Wants(logits=True))


def test_one_head_is_as_before() -> None:
    batch = batch_of_rows(0, 8)
    view = View(batch.student.inputs, batch.student.real, batch.student.at)
    heard = listen(network(0).eval(), view, Wants(logits=True)).logits
    both = listen(network(0).eval(), batch.student, Wants(logits=True)).logits
    assert torch.equal(heard, both[: len(heard)]) and both.shape == (len(heard) + 8, WORDS)
    assert (both[len(heard) :, 2:] == -torch.inf).all() and both[len(heard) :, :2].isfinite().all()
