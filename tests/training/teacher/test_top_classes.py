"""The most probable classes and the mass of the rest stand for a whole answer; live and remembered they are the same."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import Wants
from potstill.training.losses import soft_targets
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher
from potstill.training.teacher.top_classes import pack_top_classes, packed_width, unpack_top_classes
from tests.support.training_world import CPU, make_world

answers = st.integers(1, 40).flatmap(
    lambda classes: st.lists(
        st.lists(
            st.one_of(st.floats(-80, 80, width=32), st.just(-math.inf)), min_size=classes, max_size=classes
        ).filter(lambda row: max(row) > -math.inf),
        min_size=1,
        max_size=4,
    )
)


@settings(deadline=None, max_examples=200)
@given(answers, st.integers(1, 50))
def test_mass_sums_to_one_and_the_most_probable_are_exact(rows: list[list[float]], top: int) -> None:
    logits = torch.tensor(rows)
    small = pack_top_classes(logits, top)
    assert small.dtype == torch.float32 and torch.isfinite(small).all()  # as a memory wants it
    assert small.shape == (len(rows), packed_width(top, logits.shape[1]))
    answer = unpack_top_classes(small)
    assert answer.shape == logits.shape
    torch.testing.assert_close(
        answer.double().exp().sum(-1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-4
    )
    whole = F.log_softmax(logits, -1)
    size = min(top, logits.shape[1])
    which = small[:, :size].long()
    assert all(len(set(row)) == size for row in which.tolist())
    torch.testing.assert_close(answer.gather(1, which), whole.gather(1, which), rtol=1e-5, atol=1e-4)
    left_out = whole.scatter(1, which, -torch.inf)
    assert (left_out.max(1).values <= whole.gather(1, which).min(1).values).all()
    others = answer.scatter(1, which, -torch.inf)
    torch.testing.assert_close(others.logsumexp(1), left_out.logsumexp(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(unpack_top_classes(pack_top_classes(answer, top)), answer, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_all_classes_are_the_whole_answer(temperature: float) -> None:
    """Loss and gradient, impossible classes included."""
    random = torch.Generator().manual_seed(0)
    student = torch.randn(6, 9, generator=random).requires_grad_()
    teacher = 3 * torch.randn(6, 9, generator=random)
    teacher[2, 4] = -torch.inf
    for top in (9, 12):
        ours = soft_targets(student, unpack_top_classes(pack_top_classes(teacher, top)), temperature).sum()
        theirs = soft_targets(student, teacher, temperature).sum()
        torch.testing.assert_close(ours, theirs)
        gradients = (torch.autograd.grad(one, student)[0] for one in (ours, theirs))
        torch.testing.assert_close(*gradients)


def test_at_temperature_one_the_kept_terms_are_exact_and_the_rest_is_one_lump() -> None:
    """Cross-entropy by hand: of each kept class its own term, of all others their mass times the student's mean surprise."""
    random = torch.Generator().manual_seed(1)
    student, teacher = (4 * torch.randn(5, 1000, generator=random, dtype=torch.float64) for _ in range(2))
    said, ours = F.softmax(teacher, -1), -F.log_softmax(student, -1)
    best = said.topk(16).indices
    others = torch.ones_like(said, dtype=torch.bool).scatter(1, best, False)
    rest = 1 - said.gather(1, best).sum(1)
    by_hand = (said * ours).gather(1, best).sum(1) + rest * ours[others].view(5, -1).mean(1)
    answer = unpack_top_classes(pack_top_classes(teacher, 16)).double()
    crossed = soft_targets(student, answer, 1.0) - (answer.exp() * answer).sum(1)
    torch.testing.assert_close(crossed, by_hand, rtol=1e-5, atol=1e-5)


def test_numbers_of_large_vocabularies_are_exact() -> None:
    classes = 300_001
    logits = torch.zeros(1, classes)
    logits[0, [7, 262_147, 300_000]] = torch.tensor([9.0, 11.0, 10.0])
    small = pack_top_classes(logits, 3)
    assert small[0, :3].tolist() == [262_147, 300_000, 7] and small[0, -1] == classes


def test_no_predictions_are_none() -> None:
    assert len(unpack_top_classes(pack_top_classes(torch.empty(0, 5), 2))) == 0


def test_memory_holds_what_was_asked_and_no_more(tmp_path: Path) -> None:
    """Beside the logits of all classes, which others may want of the same rows."""
    world = make_world(tmp_path, task="tag")
    teacher, source = world.remembering(), world.source()
    few, all_of_them = Wants(logits=True, top=3), Wants(logits=True)
    for wants in (few, all_of_them):
        assert teacher.remember(source, wants) == len(source.examples)
        assert teacher.remember(source, wants) == 0
    memory = teacher.memory
    assert memory is not None
    keys = np.asarray(source.examples.keys[source.examples.index])
    classes = len(world.task.labels)
    assert memory.read(keys, "top.3").shape == (len(keys), 8) and classes > 3
    assert memory.read(keys, "logits").shape == (len(keys), classes)
    batch = source.batch(np.arange(4), source.count(np.arange(4)))
    whole, reduced = (teacher.signals(batch, wants).logits for wants in (all_of_them, few))
    assert whole.shape == reduced.shape and not torch.allclose(F.softmax(whole, -1), reduced.exp(), atol=1e-3)
    assert torch.equal(reduced, unpack_top_classes(pack_top_classes(whole, 3)))
    # a file of answers has logits alone
    from_file = Teacher(None, Memory(tmp_path / "memory"), CPU)
    assert torch.equal(from_file.signals(batch, few).logits, reduced)


@pytest.mark.parametrize("task", ["answer", "choose"])
def test_it_is_refused_where_a_place_has_no_distribution(task: str, tmp_path: Path) -> None:
    world = make_world(tmp_path, task=task)
    _, asked = SoftTargets(top=2).wants(2, 4)
    batch = world.source().batch(np.arange(2), world.source().count(np.arange(2)))
    for ask in (
        lambda: world.remembering().remember(world.source(), asked),
        lambda: world.live().signals(batch, asked),
        lambda: world.live().signals(replace(batch, outcome="value"), asked),
    ):
        with pytest.raises(InputError, match="omit it"):
            ask()


def test_who_wants_all_and_who_wants_few_get_all() -> None:
    few, all_of_them, state = Wants(logits=True, top=8), Wants(logits=True), Wants(cls=(1,))
    assert (few | all_of_them).top == (all_of_them | few).top == 0
    assert (few | state).top == (state | few).top == 8
    assert (few | Wants(logits=True, top=16)).top == 16
