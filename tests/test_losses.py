"""Losses that no paper's file of numbers covers, against torch's own, and what must hold at their edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import batch_of

from potstill import losses
from potstill.errors import InputError
from potstill.methods.hard_labels import HardLabels
from potstill.methods.soft_targets import SoftTargets
from potstill.recipe import resolve
from potstill.run import baseline_recipe
from potstill.signals import NEVER, Signals


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
    ours = losses.smoothed(with_others, torch.tensor([4, 0]), None, 0.1).sum()
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


@pytest.mark.parametrize("outcome", ["classes", "value"])
def test_smoothing_is_refused_where_there_is_no_one_class(outcome: losses.Outcome) -> None:
    batch = replace(batch_of([0], 1), outcome=outcome)
    with pytest.raises(InputError, match=r"smoothing = 0\.0"):
        losses.hard(torch.zeros(1, 1), batch, 0.1)


def test_the_baseline_learns_the_same_smoothed_labels(tmp_path: Path) -> None:
    for smoothing, told in ((0.1, {"smoothing": 0.1}), (0.0, {})):
        sets = ["teacher=t", "data.train=a.csv", "method=soft_targets", f"method.smoothing={smoothing}"]
        recipe = resolve(None, None, sets).recipe
        assert baseline_recipe(recipe, recipe).stage[0].method == {"name": "hard_labels", **told}
