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
from potstill.signals import TopClasses, Wants
from potstill.training.losses import LOG_ZERO, soft, soft_targets, soft_top_classes
from potstill.training.teacher.memory import Column, Memory
from potstill.training.teacher.teacher import Teacher
from potstill.training.teacher.top_classes import columns_of, from_columns, to_columns, top_classes
from tests.support.references import batch_of
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


def written_out(answer: TopClasses) -> torch.Tensor:
    """(predictions, classes) log probabilities: exact for the kept classes; all others share the rest evenly."""
    others = answer.rest[:, None] - math.log(max(answer.of - answer.classes.shape[1], 1))
    log_p = others.expand(-1, answer.of).scatter(-1, answer.classes, answer.log_probabilities)
    return log_p.masked_fill(log_p <= LOG_ZERO, -torch.inf)


@settings(deadline=None, max_examples=200)
@given(answers, st.integers(1, 50))
def test_mass_sums_to_one_and_the_most_probable_are_exact(rows: list[list[float]], top: int) -> None:
    logits = torch.tensor(rows)
    small = top_classes(logits, top)
    size = min(top, logits.shape[1])
    assert small.classes.shape == small.log_probabilities.shape == (len(rows), size) and small.of == logits.shape[1]
    for part in (small.log_probabilities, small.rest):  # as a memory wants it
        assert part.dtype == torch.float32 and torch.isfinite(part).all()
    answer = written_out(small)
    torch.testing.assert_close(
        answer.double().exp().sum(-1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-4
    )
    whole = F.log_softmax(logits, -1)
    assert all(len(set(row)) == size for row in small.classes.tolist())
    torch.testing.assert_close(answer.gather(1, small.classes), whole.gather(1, small.classes), rtol=1e-5, atol=1e-4)
    left_out = whole.scatter(1, small.classes, -torch.inf)
    assert (left_out.max(1).values <= whole.gather(1, small.classes).min(1).values).all()
    others = answer.scatter(1, small.classes, -torch.inf)
    torch.testing.assert_close(others.logsumexp(1), left_out.logsumexp(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(written_out(top_classes(answer, top)), answer, rtol=1e-5, atol=1e-4)


@settings(deadline=None, max_examples=200)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(2, 40), st.integers(1, 45)),
    temperature=st.sampled_from([1.0, 1.0, 0.5, 4.0]),
    never=st.sets(st.integers(1, 39), max_size=3),
    impossible=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_the_loss_is_that_of_the_answer_written_out(
    size: tuple[int, int, int], temperature: float, never: set[int], impossible: tuple[bool, bool], seed: int
) -> None:
    """Loss and gradient: at all temperatures, with classes that a row does not have on either side, or that nothing has."""
    (rows, classes, top), random = size, torch.Generator().manual_seed(seed)
    student, teacher = (3 * torch.randn(rows, classes, generator=random, dtype=torch.float64) for _ in range(2))
    for side, some in zip((student, teacher), impossible, strict=True):
        if some:  # class 0 stays possible
            side[:, 1:][torch.rand(rows, classes - 1, generator=random) < 0.3] = -torch.inf
    answer = top_classes(teacher, top)
    excluded = tuple(sorted(one for one in never if one < classes))
    student.requires_grad_()
    ours = soft_top_classes(student, answer, temperature, excluded)
    theirs = soft_targets(student, written_out(answer).double(), temperature, excluded)
    possible = torch.isfinite(theirs)  # where rounding left the teacher no class that the student has
    torch.testing.assert_close(ours[possible], theirs[possible], rtol=1e-6, atol=1e-6)
    gradients = (torch.autograd.grad(one[possible].sum(), student)[0] for one in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("classes", [50, 30_000])
def test_float32_keeps_six_digits(classes: int) -> None:
    """The loss of logits that are written out loses two more at 30,000 classes."""
    random = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(20, classes, generator=random) for _ in range(2))
    answer = top_classes(teacher, 16)
    found, expected = [], []
    for values, precision in ((found, torch.float32), (expected, torch.float64)):
        side = student.to(precision).requires_grad_()
        each = (
            soft_top_classes(side, answer, 1.0)
            if values is found
            else soft_targets(side, written_out(answer).double(), 1.0)
        )
        values += [each.double(), torch.autograd.grad(each.mean(), side)[0].double()]
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_all_classes_are_the_whole_answer(temperature: float) -> None:
    """Loss and gradient, impossible classes included."""
    random = torch.Generator().manual_seed(0)
    student = torch.randn(6, 9, generator=random).requires_grad_()
    teacher = 3 * torch.randn(6, 9, generator=random)
    teacher[2, 4] = -torch.inf
    for top in (9, 12):
        ours = soft_top_classes(student, top_classes(teacher, top), temperature).sum()
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
    answer = top_classes(teacher, 16)
    log_p = written_out(answer).double()
    crossed = soft_top_classes(student, answer, 1.0) - (log_p.exp() * log_p).sum(1)
    torch.testing.assert_close(crossed, by_hand, rtol=1e-5, atol=1e-5)


def test_numbers_of_large_vocabularies_are_exact() -> None:
    classes = 300_001
    logits = torch.zeros(1, classes)
    logits[0, [7, 262_147, 300_000]] = torch.tensor([9.0, 11.0, 10.0])
    small = top_classes(logits, 3)
    columns = to_columns(3, small)
    assert {name: Column(values.shape[1:], str(values.dtype)) for name, values in columns.items()} == columns_of(
        3, classes
    )
    again = from_columns(3, lambda name: torch.from_numpy(columns[name]))
    assert again.classes.tolist() == [[262_147, 300_000, 7]] and again.of == classes
    assert torch.equal(again.log_probabilities, small.log_probabilities) and torch.equal(again.rest, small.rest)


def test_no_predictions_are_none() -> None:
    answer = top_classes(torch.empty(0, 5), 2)
    assert len(soft_top_classes(torch.empty(0, 5), answer, 1.0)) == 0


def test_rows_without_an_answer_add_nothing_to_loss_and_gradient() -> None:
    """A memory fills them with zeros."""
    student = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    answer = top_classes(torch.randn(3, 9), 4)
    silent = torch.tensor([False, True, False])
    filled = {
        name: np.where(silent.numpy().reshape(3, *[1] * (v.ndim - 1)), 0, v)
        for name, v in to_columns(4, answer).items()
    }
    batch = replace(batch_of(None, 3), taught_predictions=~silent)
    term = soft(student, from_columns(4, lambda name: torch.from_numpy(filled[name])), batch, None)
    (gradient,) = torch.autograd.grad(term.total, student)
    torch.testing.assert_close(term.total, soft_top_classes(student, answer, 1.0)[~silent].sum())
    assert gradient.isfinite().all() and (gradient[1] == 0).all() and gradient[0].abs().sum() > 0


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match="the student has 8 classes and the teacher 9; omit top"):
        soft_top_classes(torch.zeros(1, 8), top_classes(torch.zeros(1, 9), 2), 1.0)


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
    assert classes > 3 and {
        name: Column(memory.read(keys, name).shape[1:], str(memory.read(keys, name).dtype))
        for name in columns_of(3, classes)
    } == columns_of(3, classes)
    assert memory.read(keys, "logits").shape == (len(keys), classes)
    batch = source.batch(np.arange(4), source.count(np.arange(4)))
    whole, reduced = (teacher.signals(batch, wants) for wants in (all_of_them, few))
    assert whole.top is None and reduced.top is not None and not reduced.logits.numel()
    assert not torch.allclose(F.softmax(whole.logits, -1), written_out(reduced.top).exp(), atol=1e-3)
    # live, and a file of answers, which has logits alone
    from_file = Teacher(None, Memory(tmp_path / "memory"), CPU)
    for answer in (top_classes(whole.logits, 3), from_file.signals(batch, few).top):
        assert answer is not None and answer.of == reduced.top.of == classes
        for name in ("classes", "log_probabilities", "rest"):
            assert torch.equal(getattr(answer, name), getattr(reduced.top, name))


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
