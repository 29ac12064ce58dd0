"""Labels find their classes, by name or by number, or the user is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faults import peak_memory
from small import ARCHITECTURES, NEGATIVE, NEUTRAL, POSITIVE, small_tokenizer

from potstill.errors import InputError
from potstill.tasks import Task, make_task, near_chance


def head(*names: str, problem: str | None = "single_label_classification") -> Any:
    return SimpleNamespace(num_labels=len(names), id2label=dict(enumerate(names)), problem_type=problem)


def test_names_match_by_name_whatever_their_order_or_case() -> None:
    task, told = make_task(None, head("negative", "positive"), ["Positive", "negative"], None, "train.csv")
    assert [task.encode(label, "") for label in ("positive", "Negative")] == [[1.0], [0.0]]
    assert "by name" in told


def test_numbers_match_by_index_and_are_shown() -> None:
    task, told = make_task(None, head("negative", "positive"), ["1", "0"], None, "train.csv")
    assert task.encode("1", "") == [1.0]
    assert "0 = negative, 1 = positive" in told


@pytest.mark.parametrize(("found", "where"), [(["2"], "train.csv:7"), (["neutral"], "train.csv:9"), (["-1"], "x")])
def test_an_unknown_label_is_an_error_at_its_line(found: list[str], where: str) -> None:
    task, _ = make_task(None, head("negative", "positive"), ["negative", *found], None, "train.csv")
    with pytest.raises(InputError, match=f"{where}: unknown label '{found[0]}'"):
        task.encode(found[0], where)


def test_names_without_names_on_the_other_side_ask_for_labels() -> None:
    with pytest.raises(InputError, match="--labels"):
        make_task(None, head("LABEL_0", "LABEL_1"), ["bad", "good"], None, "train.csv")
    task, _ = make_task(None, head("LABEL_0", "LABEL_1"), ["bad", "good"], ["bad", "good"], "train.csv")
    assert task.encode("good", "") == [1.0]
    with pytest.raises(InputError, match="another order"):
        make_task(None, head("bad", "good"), ["bad", "good"], ["good", "bad"], "train.csv")


@pytest.mark.parametrize(
    ("found", "outcome", "labels"),
    [
        (["b", "a"], "class", ("a", "b")),
        (["10", "9", "0"], "class", ("0", "9", "10")),
        (["3.8", "5.0", "0"], "value", ("value",)),
        ([str(n) for n in range(100)], "value", ("value",)),
        ([("x",), ("y", "x")], "classes", ("x", "y")),
    ],
)
def test_a_task_without_a_model_is_told_by_its_labels(found: list[Any], outcome: str, labels: tuple[str, ...]) -> None:
    task, _ = make_task(None, None, found, None, "train.csv")
    assert (task.outcome, task.labels) == (outcome, labels)


def test_one_label_is_no_task() -> None:
    with pytest.raises(InputError, match="at least two"):
        make_task(None, None, ["a"], None, "train.csv")


@pytest.mark.parametrize("label", ["x", "nan", "inf", "1,5", ""])
def test_values_are_finite_numbers(label: str) -> None:
    with pytest.raises(InputError, match="not a number"):
        Task("value", ("value",)).encode(label, "f:3")


def test_chance_is_told_from_skill() -> None:
    task = Task("class", ("a", "b"))
    random = np.random.default_rng(0)
    targets = (random.random(500) < 0.9).astype(np.float32)  # nine in ten: always saying b is right, and is no skill
    always = np.tile([0.0, 1.0], (500, 1))
    assert "near chance" in str(near_chance(task, targets, always))
    skilled = np.stack([1 - targets, targets], 1)
    assert near_chance(task, targets, skilled) is None
    assert "wrong order" in str(near_chance(task, targets, 1 - skilled))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_far_too_long_are_read_as_if_they_had_not_been_cut_before(
    architecture: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(architecture)
    tokenizer.truncation_side = side
    task = Task("class", ("no", "yes"))
    words = [*POSITIVE, *NEGATIVE, *NEUTRAL]
    texts = [
        (" ".join(words[n % len(words)] for n in range(size)), " ".join(words[: size // 2])) for size in (5, 80, 300)
    ]
    plain = task.split(texts, tokenizer, 16)
    monkeypatch.setattr("potstill.tasks.labels.FAR_TOO_LONG", 1)
    assert task.split(texts, tokenizer, 16) == plain and plain.shortened >= 2


def test_two_texts_of_a_hundred_thousand_letters_need_little_memory() -> None:
    with peak_memory() as most:
        made = Task("class", ("no", "yes")).split([("good " * 20_000,) * 2] * 3, small_tokenizer("bert"), 16)
    assert made.shortened == 3 and most[0] < 200
