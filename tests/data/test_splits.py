"""Dev that is held out, and rows that stand in two splits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from potstill.data.examples import Examples, store
from potstill.data.rows import open_table
from potstill.data.splits import leaks, split_off_dev
from potstill.errors import InputError
from potstill.runs.build import train_texts
from potstill.runs.prepare import rows_to_check
from potstill.tasks.label_matching import make_task

TASK = make_task(None, None, ["a", "b", "c"], None, "rows")[0]


def examples(folder: Path, rows: list[tuple[str, str]], name: str = "rows.csv") -> Examples:
    (folder / name).write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return store(open_table(folder / name), TASK)


def test_a_tenth_of_each_class_is_held_out_of_a_sorted_file(tmp_path: Path) -> None:
    rows = examples(
        tmp_path,
        [(f"{label} {n}", label) for label, size in {"a": 500, "b": 300, "c": 20}.items() for n in range(size)],
    )
    train, dev = split_off_dev(rows, TASK)
    assert (np.bincount(dev.targets[dev.index].astype(int)) == [50, 30, 2]).all()
    assert len(train) + len(dev) == len(rows) and not set(train.index) & set(dev.index)
    again, _ = split_off_dev(rows, TASK)
    assert np.array_equal(train.index, again.index)
    assert len({number // 100 for number in dev.index[:50]}) == 5, "not one part of the file"


def test_rows_of_the_same_text_are_held_out_together_or_not_at_all(tmp_path: Path) -> None:
    rows = [(f"text {n // 3}", "ab"[n // 3 % 2]) for n in range(300)] + [("often", "a")] * 90
    train, dev = split_off_dev(examples(tmp_path, rows), TASK)
    assert not {text for text, _ in train.texts()} & {text for text, _ in dev.texts()}
    assert 30 <= len(dev) <= 40


@pytest.mark.parametrize(
    "rows", [[("x", "a"), ("y", "b")], [("x", "a")] * 5 + [("y", "b")] * 7, [("x", "a"), ("y", "a")]]
)
def test_few_texts_give_one_to_dev(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    train, dev = split_off_dev(examples(tmp_path, rows), TASK)
    assert len(set(train.texts())) == len(set(dev.texts())) == 1


def test_one_text_alone_cannot_be_held_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"same text.*--dev"):
        split_off_dev(examples(tmp_path, [("x", "a")] * 5), TASK)


def test_rows_that_stand_in_two_splits_are_counted(tmp_path: Path) -> None:
    train = examples(tmp_path, [(f"t {n}", "a") for n in range(10)])
    dev = examples(tmp_path, [("t 1", "a"), ("t 1", "b"), ("new", "a")], "dev.csv")
    test = examples(tmp_path, [("new", "b"), ("other", "a")], "test.csv")
    assert leaks(train, {"dev": dev, "test": test}, TASK) == [
        {"split": "dev", "also_in": "train", "rows": 2, "of": 3},
        {"split": "test", "also_in": "dev", "rows": 1, "of": 2},
    ]
    assert leaks(train, {"dev": dev.take(np.array([2]))}, TASK) == []


def test_a_teacher_is_asked_a_sample_of_a_sorted_file(tmp_path: Path) -> None:
    rows = examples(tmp_path, [(f"{label} {n}", label) for label in "abc" for n in range(1000)])
    data: Any = SimpleNamespace(dev=rows, train=rows, task=TASK)
    asked = rows_to_check(data)
    assert len(asked) == 1000 and (np.bincount(asked.targets[asked.index].astype(int)) > 250).all()
    assert np.array_equal(asked.index, rows_to_check(data).index)


def test_vocabularies_are_counted_on_train_alone(tmp_path: Path) -> None:
    train, dev = examples(tmp_path, [("one", "a")]), examples(tmp_path, [("two", "a")], "dev.csv")
    data: Any = SimpleNamespace(train=train, dev=dev)
    assert list(train_texts([data])()) == ["one"]
