"""Classes drawn from a teacher's distribution stand for it: right in expectation, the same live and remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from potstill.errors import InputError
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import DrawnClasses, View, Wants
from potstill.training.losses import soft, soft_drawn_classes, soft_targets
from potstill.training.teacher.drawn_classes import (
    columns_of,
    drawn_classes,
    from_columns,
    prediction_keys,
    to_columns,
)
from potstill.training.teacher.memory import Column, Memory
from potstill.training.teacher.teacher import Teacher
from tests.support.references import batch_of
from tests.support.training_world import CPU, make_world


def target_of(answer: DrawnClasses) -> torch.Tensor:
    """(predictions, classes): the share of the draws that each class has."""
    return F.one_hot(answer.classes, answer.of).double().mean(1)


def logits_of(rows: int, classes: int) -> torch.Tensor:
    return 3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(0))


def test_the_expectation_of_the_target_is_the_teachers_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly: over a grid of all that can be drawn, no share is further off than a step of the grid. And over keys."""
    logits, keys, draws = logits_of(3, 40), np.arange(20_000), 5
    logits[2, 7] = -torch.inf
    expected = F.softmax(logits.double(), -1)
    for row, p in zip(logits, expected, strict=True):
        mean = target_of(drawn_classes(row.expand(len(keys), -1), draws, keys)).mean(0)
        assert ((mean - p).abs() <= 5 * (p / draws / len(keys)).sqrt() + 1e-6).all()
    steps = 2_000
    grid = (np.arange(steps)[:, None] + 0.5) / steps
    monkeypatch.setattr("potstill.training.teacher.drawn_classes.draw_uniform", lambda *_: grid)
    for row, p in zip(logits, expected, strict=True):
        mean = target_of(drawn_classes(row.expand(steps, -1), draws, np.arange(steps))).mean(0)
        assert (mean - p).abs().max() <= 1 / (steps * draws)
    assert p[7] == mean[7] == 0


def test_no_class_is_more_than_one_draw_off() -> None:
    logits, draws = logits_of(500, 30), 12
    targets = target_of(drawn_classes(logits, draws, np.arange(500)))
    assert ((targets - F.softmax(logits.double(), -1)).abs() * draws < 1 + 1e-9).all()
    assert set(targets.mul(draws).round(decimals=9).unique().tolist()) >= {0.0, 1.0, 2.0, 3.0}


def test_the_expected_loss_is_kl_and_the_teachers_entropy_and_its_gradient_that_of_kl() -> None:
    teacher, keys = logits_of(1, 20), np.arange(20_000)
    student = torch.randn(1, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    each = soft_drawn_classes(student.expand(len(keys), -1), drawn_classes(teacher.expand(len(keys), -1), 6, keys))
    p = F.softmax(teacher.double(), -1)
    whole = soft_targets(student, teacher.double(), 1.0) - (p * p.log()).sum(-1)
    torch.testing.assert_close(each.mean(0, keepdim=True), whole, rtol=0, atol=2e-3)
    ours, theirs = (torch.autograd.grad(loss.mean(), student)[0] for loss in (each, whole))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
    assert theirs.abs().max() > 0.1


def test_draws_depend_on_the_key_alone() -> None:
    """Not on the rows beside it, so that a memory, a live teacher and a resumed run have the same ones."""
    logits, keys = logits_of(64, 50), np.arange(64) * 7
    every = drawn_classes(logits, 3, keys).classes
    for part in (slice(5, 9), slice(40, 64)):
        assert torch.equal(drawn_classes(logits[part], 3, keys[part]).classes, every[part])
    assert not torch.equal(drawn_classes(logits, 3, keys + 1).classes, every)


def test_a_large_vocabulary_is_drawn_from_in_parts_and_stored_in_few_bytes() -> None:
    logits = torch.full((40, 300_001), -30.0)
    logits[:, 300_000] = 0.0
    logits[:, 262_147] = 0.0
    answer = drawn_classes(logits, 12, np.arange(40))
    assert set(answer.classes.flatten().tolist()) == {262_147, 300_000}
    columns = to_columns(12, answer)
    stored = {name: Column(values.shape[1:], str(values.dtype)) for name, values in columns.items()}
    assert stored == columns_of(12) and sum(values[0].nbytes for values in columns.values()) == 52
    again = from_columns(12, lambda name: torch.from_numpy(columns[name]))
    assert torch.equal(again.classes, answer.classes) and again.of == 300_001


def test_impossible_classes_do_not_count() -> None:
    student, answer = (
        torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]).requires_grad_(),
        DrawnClasses(torch.tensor([[1, 2, 3]]), 4),
    )
    by_hand = -F.log_softmax(student, -1)
    (some,), (one,) = soft_drawn_classes(student, answer), soft_drawn_classes(student, answer, never=(3,))
    torch.testing.assert_close(some, (by_hand[0, 1] + by_hand[0, 3]) / 2)
    torch.testing.assert_close(one, by_hand[0, 1])
    (gradient,) = torch.autograd.grad(some, student)
    assert gradient.isfinite().all()


def test_rows_without_an_answer_add_nothing() -> None:
    student = logits_of(3, 9).requires_grad_()
    answer = drawn_classes(logits_of(3, 9), 4, np.arange(3))
    silent = torch.tensor([False, True, False])
    answer.classes[silent] = 0  # as a memory fills them
    term = soft(student, answer, replace(batch_of(None, 3), taught_predictions=~silent), None)
    (gradient,) = torch.autograd.grad(term.total, student)
    torch.testing.assert_close(term.total, soft_drawn_classes(student, answer)[~silent].sum())
    assert not gradient[1].any() and gradient[0].any()


def test_live_remembered_and_from_a_file_of_answers_they_are_the_same(tmp_path: Path) -> None:
    world = make_world(tmp_path, task="tag")
    teacher, source = world.remembering(), world.source()
    few, all_of_them = Wants(logits=True, draws=3), Wants(logits=True)
    for wants in (few, all_of_them):
        assert teacher.remember(source, wants) == len(source.examples)
        assert teacher.remember(source, wants) == 0
    batch = source.batch(np.arange(4), source.count(np.arange(4)))
    remembered = teacher.signals(batch, few).drawn
    from_file = Teacher(None, Memory(tmp_path / "memory"), CPU)
    for other in (world.live().signals(batch, few).drawn, from_file.signals(batch, few).drawn):
        assert remembered is not None and other is not None and other.of == remembered.of == len(world.task.labels)
        assert torch.equal(other.classes, remembered.classes)
    assert len(torch.unique(remembered.classes)) > 1


def test_each_prediction_of_a_batch_has_a_key_of_its_own() -> None:
    """Also those of a second head, in their order; the first place of an example has the example's key."""
    at = torch.tensor([[0, 1], [0, 4], [1, 2], [2, 0], [2, 3]])
    real = torch.ones(3, 6, dtype=torch.bool)
    examples = np.array([11, 12, 13])
    one = prediction_keys(examples, View({}, real, at))
    both = prediction_keys(examples, View({}, real, at, also_at=torch.tensor([[0, 0], [1, 0], [2, 0]])))
    assert one[[0, 2, 3]].tolist() == [11, 12, 13] and both[:5].tolist() == one.tolist()
    assert len(both) == 8 and len(set(both.tolist())) == 8


@pytest.mark.parametrize("task", ["answer", "choose"])
def test_it_is_refused_where_a_place_has_no_distribution(task: str, tmp_path: Path) -> None:
    world = make_world(tmp_path, task=task)
    _, asked = SoftTargets(draws=2).wants(2, 4)
    with pytest.raises(InputError, match="'draws' are only for tasks that predict one of several classes"):
        world.remembering().remember(world.source(), asked)


@pytest.mark.parametrize(
    ("fields", "words"), [({"top": 2, "draws": 2}, "omit one"), ({"draws": 2, "temperature": 2.0}, "omit draws")]
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SoftTargets(**fields)  # type: ignore[arg-type]


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match="the student has 8 classes and the teacher 9; omit draws"):
        soft_drawn_classes(torch.zeros(1, 8), DrawnClasses(torch.zeros(1, 2, dtype=torch.long), 9))


def test_who_wants_all_and_who_wants_others_get_all() -> None:
    few, top, all_of_them, state = (
        Wants(logits=True, draws=8),
        Wants(logits=True, top=8),
        Wants(logits=True),
        Wants(cls=(1,)),
    )
    assert (few | state).draws == (state | few).draws == 8
    for both in (few | all_of_them, all_of_them | few, few | top, top | few):
        assert both.logits and not both.few
