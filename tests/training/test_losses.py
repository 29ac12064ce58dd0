"""Losses that no paper's file of numbers covers, against torch's own, and what must hold at their edges."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.plugins.methods.hard_labels import HardLabels
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.recipe.resolve import resolve
from potstill.runs.baseline import baseline_recipe
from potstill.signals import NEVER, Batch, Signals, View
from potstill.training import losses
from tests.support.references import batch_of


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(2, 9),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from([None, -torch.inf, NEVER]),
    st.integers(0, 1000),
)
def test_smoothing_is_torchs(
    rows: int, classes: int, smoothing: float, weighed: bool, impossible: float | None, seed: int
) -> None:
    """Its value and its gradient, with class weights and without; a class that is impossible, the last one, changes neither."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=random, dtype=torch.float64).mul(3).requires_grad_()
    targets = torch.randint(classes, (rows,), generator=random)
    weights = torch.rand(classes, generator=random, dtype=torch.float64) + 0.1 if weighed else None
    batch = batch_of(targets.tolist(), rows)
    more = 0 if impossible is None else 1
    if weights is not None:
        batch = replace(batch, class_weights=F.pad(weights, (0, more), value=5.0))
    if impossible == NEVER:  # a number like any other, but for what the task says of its class
        batch = replace(batch, never=(classes,))
    heard = Signals(logits=F.pad(logits, (0, more), value=impossible))
    ours = HardLabels(smoothing).losses(heard, Signals(), batch)["hard"].mean(batch.counts)
    theirs = F.cross_entropy(logits, targets, weights, label_smoothing=smoothing, reduction="none").mean()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(one, logits)[0] for one in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_smoothing_gives_nothing_to_impossible_classes() -> None:
    """Loss and gradient are those of the possible classes alone."""
    possible = torch.tensor([[0.3, -1.2, 2.0], [1.0, 0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    with_others = torch.full((2, 5), -torch.inf, dtype=torch.float64)
    with_others[:, [0, 2, 4]] = possible.detach()
    with_others.requires_grad_()
    ours = losses.smoothed_cross_entropy(with_others, torch.tensor([4, 0]), None, 0.1).sum()
    theirs = F.cross_entropy(possible, torch.tensor([2, 0]), label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(ours, with_others)
    assert torch.isfinite(gradient).all() and (gradient[:, [1, 3]] == 0).all()
    torch.testing.assert_close(gradient[:, [0, 2, 4]], torch.autograd.grad(theirs, possible)[0], rtol=1e-12, atol=1e-12)


def test_soft_targets_smooth_their_hard_term_alone() -> None:
    student, teacher = torch.randn(2, 4, 3).unbind()
    batch = batch_of([0, 2, 1, 1], 4)
    plain, smooth = (SoftTargets(smoothing=one).losses(Signals(student), Signals(teacher), batch) for one in (0.0, 0.2))
    assert torch.equal(plain["soft"].total, smooth["soft"].total)
    expected = 0.5 * F.cross_entropy(student, batch.targets, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(smooth["hard"].total, expected)


@pytest.mark.parametrize("temperature", [1.0, 5.0, 100.0, 1000.0])
@pytest.mark.parametrize("sets", [False, True])
def test_the_soft_term_in_float32_is_that_of_float64(temperature: float, sets: bool) -> None:
    """Also where the two distributions are nearly flat: a difference of logarithms of size 1 would be mostly rounding."""
    random = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 64, 5, generator=random, dtype=torch.float64).mul(3).unbind()
    loss = losses.soft_multilabel if sets else losses.soft_targets
    if sets:
        by_hand = sum(
            F.kl_div(F.logsigmoid(sign * student / temperature), F.logsigmoid(sign * teacher / temperature), log_target=True, reduction="none")
            for sign in (1, -1)
        ).sum(-1)  # fmt: skip
    else:
        ours, theirs = (F.log_softmax(one / temperature, -1) for one in (student, teacher))
        by_hand = F.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(loss(student, teacher, temperature), temperature**2 * by_hand, rtol=1e-6, atol=1e-9)
    single = loss(student.float(), teacher.float(), temperature)
    torch.testing.assert_close(single.double(), loss(student, teacher, temperature), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("size", [4999.0, 5001.0, 9000.0, 3e4])
def test_a_student_that_went_astray_is_told_so(size: float) -> None:
    """Whether a class can be is the task's to say; a very low number of the student is a very wrong answer."""
    teacher = torch.tensor([[-3.0, 3.0]], dtype=torch.float64)
    student = torch.tensor([[size, -size]], dtype=torch.float64, requires_grad=True)
    for loss in (losses.soft_targets(student, teacher, 5.0), losses.logit_distance(student, teacher)):
        (gradient,) = torch.autograd.grad(loss.sum(), student)
        assert float(loss.detach()) > size and float(gradient.abs().min()) > 1
    far = torch.tensor([[-6000.0, 1.0]], dtype=torch.float64)
    assert float(losses.logit_distance(far, torch.tensor([[-9000.0, 1.0]]))) == 3000.0**2


def test_a_class_that_can_never_be_takes_nothing_from_the_others() -> None:
    """The teacher's mass is on the others; what a student gives to that class, it loses."""
    random = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 8, 6, generator=random, dtype=torch.float64).unbind()
    alone = losses.soft_targets(student[:, 1:], teacher[:, 1:], 2.0)
    shut = F.pad(student[:, 1:], (1, 0), value=NEVER)
    torch.testing.assert_close(losses.soft_targets(shut, teacher, 2.0, never=(0,)), alone)
    given_away = -4 * torch.log1p(-F.softmax(student / 2, -1)[:, 0])
    torch.testing.assert_close(losses.soft_targets(student, teacher, 2.0, never=(0,)), alone + given_away)
    torch.testing.assert_close(
        losses.logit_distance(student, teacher, never=(0,)), losses.logit_distance(student[:, 1:], teacher[:, 1:])
    )


def test_a_label_weighs_the_same_beside_many_rows_without_one() -> None:
    """One labelled row among 32: its gradient is a 32nd of what it is alone, as that of every row that is taught."""
    logits = torch.randn(32, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    batch = batch_of([1] * 32, 32)
    few = replace(batch, labelled=torch.arange(32) == 5)
    every, one = (losses.hard(logits, each).mean(each.counts) for each in (batch, few))
    whole, alone = (torch.autograd.grad(each, logits)[0] for each in (every, one))
    torch.testing.assert_close(alone[5], whole[5])
    assert not alone[torch.arange(32) != 5].any()


@pytest.mark.parametrize("top", [None, 4])
@pytest.mark.parametrize("vocabulary", [False, True])
def test_the_temperature_is_one_over_a_vocabulary_and_of_the_most_probable(top: int | None, vocabulary: bool) -> None:
    student, teacher = torch.randn(2, 4, 30, generator=torch.Generator().manual_seed(0)).unbind()
    batch = replace(batch_of([0, 2, 1, 1], 4), vocabulary=vocabulary)
    found = SoftTargets(top=top).losses(Signals(student), Signals(teacher), batch)["soft"].total
    expected = 0.5 * losses.soft_targets(student, teacher, 1.0 if top or vocabulary else 5.0).sum()
    torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match=r"write temperature = 1\.0, or omit top"):
        SoftTargets(temperature=2.0, top=4)


@pytest.mark.parametrize("outcome", ["classes", "value"])
def test_smoothing_is_refused_where_there_is_no_one_class(outcome: losses.Outcome) -> None:
    batch = replace(batch_of([0], 1), outcome=outcome)
    with pytest.raises(InputError, match=r"smoothing = 0\.0"):
        losses.hard(torch.zeros(1, 1), batch, 0.1)


def test_the_baseline_learns_the_same_smoothed_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potstill.runs.baseline.stage_examples", lambda *_: range(10))
    labelled = SimpleNamespace(train=SimpleNamespace(labelled_only=range(10)))
    every: Any = SimpleNamespace(of=lambda stage: [labelled])
    for smoothing, told in ((0.1, {"smoothing": 0.1}), (0.0, {})):
        sets = ["teacher=t", "data.train=a.csv", "method=soft_targets", f"method.smoothing={smoothing}"]
        recipe = resolve(None, None, sets).recipe
        assert baseline_recipe(recipe, recipe, every, [10]).stage[0].method == {"name": "hard_labels", **told}


ATTENTION_LOSSES = {
    "scores": (losses.score_distance, lambda student, teacher: (student - teacher).square().mean(-1)),
    "heads": (losses.head_divergence, lambda student, teacher: (teacher * (teacher.log() - student.log())).sum(-1)),
}


def attention_batch(lengths: list[int], untaught: int) -> Batch:
    """Texts of these lengths; the teacher has no answer for one of them."""
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    taught = torch.arange(len(lengths)) != untaught
    view = View({}, real, torch.zeros(len(lengths), 2, dtype=torch.long))
    return replace(batch_of(None, len(lengths)), student=view, taught=taught, counts={"tokens": sum(lengths)})


@pytest.mark.parametrize("name", ATTENTION_LOSSES)
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), untaught=st.integers(0, 5), seed=st.integers(0, 1000)
)
def test_attention_is_compared_as_text_by_text_without_padding(
    name: str, lengths: list[int], untaught: int, seed: int
) -> None:
    """A mean over heads and the queries of all texts, a sum over layers; value and gradient, whatever padding holds."""
    loss, by_hand = ATTENTION_LOSSES[name]
    random = torch.Generator().manual_seed(seed)
    size = max(lengths)
    sides = [torch.randn(len(lengths), 2, 3, size, size, generator=random, dtype=torch.float64) for _ in range(2)]
    sides[1][:, :, :, :, min(lengths) :] *= 50
    student, teacher = sides[0].requires_grad_(), sides[1]
    batch = attention_batch(lengths, untaught)

    def given(side: torch.Tensor) -> torch.Tensor:
        if name == "scores":
            return side
        return side.masked_fill(~batch.student.real[:, None, None, None], -torch.inf).softmax(-1)

    found = loss(given(student), given(teacher), batch).mean(batch.counts)
    expected = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths):
        if row == untaught:
            continue
        for layer in range(2):
            for head in range(3):
                ours, theirs = (side[row, layer, head, :length, :length] for side in (student, teacher))
                if name == "heads":
                    ours, theirs = ours.softmax(-1), theirs.softmax(-1)
                expected = expected + by_hand(ours, theirs).sum() / 3 / sum(lengths)
    torch.testing.assert_close(found, expected)
    if untaught >= len(lengths):  # at least one text is compared
        gradients = [torch.autograd.grad(one, student, retain_graph=True)[0] for one in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ATTENTION_LOSSES)
def test_heads_are_compared_in_pairs(name: str) -> None:
    loss, _ = ATTENTION_LOSSES[name]
    with pytest.raises(InputError, match=r"4 heads where the teacher has 12; build the student with heads = 12"):
        loss(torch.rand(1, 1, 4, 2, 2), torch.rand(1, 1, 12, 2, 2), attention_batch([2], 5))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), untaught=st.integers(0, 5), seed=st.integers(0, 1000)
)
def test_relations_are_compared_as_text_by_text_without_padding(lengths: list[int], untaught: int, seed: int) -> None:
    """Between widths of 6 and 12, cut into 3 heads; value and gradient, whatever padding holds."""
    random = torch.Generator().manual_seed(seed)
    student, teacher = (
        torch.randn(len(lengths), max(lengths), width, generator=random, dtype=torch.float64) for width in (6, 12)
    )
    student[:, min(lengths) :] *= 50
    student.requires_grad_()
    batch = attention_batch(lengths, untaught)
    found = losses.relation_divergence(student, teacher, 3, batch).mean(batch.counts)
    expected = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths):
        if row == untaught:
            continue
        for head in range(3):
            slices = [
                side[row, :length, head * width : (head + 1) * width] for side, width in ((student, 2), (teacher, 4))
            ]
            ours, theirs = (F.log_softmax(each @ each.T / each.shape[1] ** 0.5, -1) for each in slices)
            expected = expected + F.kl_div(ours, theirs, reduction="sum", log_target=True) / 3 / sum(lengths)
    torch.testing.assert_close(found, expected)
    if untaught >= len(lengths):
        gradients = [torch.autograd.grad(each, student, retain_graph=True)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients)


def test_relations_need_slices_of_one_width() -> None:
    with pytest.raises(InputError, match=r"vectors of 6 numbers cannot be cut into 4 relation heads; write heads = "):
        losses.relation_divergence(torch.rand(1, 2, 6), torch.rand(1, 2, 8), 4, attention_batch([2], 5))


def test_centred_scores_are_free_of_what_the_softmax_does_not_see() -> None:
    """Offsets of queries, which a bias of the keys adds, and padding change nothing."""
    scores, batch = torch.randn(2, 1, 3, 4, 4, dtype=torch.float64), attention_batch([4, 2], 5)
    shifted = scores + 100 * torch.randn(2, 1, 3, 4, 1, dtype=torch.float64)
    shifted[1, :, :, :, 2:] = 1e9
    plain, other = (losses.centred_scores(side, batch) for side in (scores, shifted))
    torch.testing.assert_close(plain[0], other[0])
    torch.testing.assert_close(plain[1, ..., :2], other[1, ..., :2])
    torch.testing.assert_close(plain[0].softmax(-1), scores[0].softmax(-1))


def test_the_mean_of_scores_is_that_of_a_wider_head() -> None:
    """Neighbouring heads side by side, as one head of their whole width, have the mean of their scores, times √2."""
    queries, keys = (torch.randn(1, 1, 4, 5, 8, dtype=torch.float64) for _ in range(2))
    wide = [side.unflatten(2, (2, 2)).transpose(3, 4).flatten(4) for side in (queries, keys)]  # two heads of 16
    mean, same = losses.as_many_heads(queries @ keys.mT / 8**0.5, torch.zeros(1, 1, 2, 5, 5, dtype=torch.float64))
    torch.testing.assert_close(mean * 2**0.5, wide[0] @ wide[1].mT / 16**0.5)
    assert same.shape == mean.shape
    with pytest.raises(InputError, match=r"12 heads of one side cannot be averaged to the 8 .* heads = 12"):
        losses.as_many_heads(torch.rand(1, 1, 8, 2, 2), torch.rand(1, 1, 12, 2, 2))
