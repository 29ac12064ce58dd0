"""What every data maker promises. A file in data/ is tested by existing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples, key_of, store
from potstill.data.making import EpochDataMaker, MakeContext
from potstill.data.pixel_reader import PixelReader
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe import plugins
from potstill.system import paths
from potstill.tasks.label_matching import labels_of, make_task
from potstill.tasks.task import Task
from tests.support.generative_models import trained_marian
from tests.support.small_models import sentences, small_model, small_tokenizer, write_csv, write_digits

ODD = ["", "   ", "x", "日本 の 映画", "ﷺ \u200f شكرا", "🎬 " * 40, "[MASK] film", "a/b // \\ | &slash;", "w" * 5000]
FIELDS: dict[str, dict[str, Any]] = {
    "sample": {"rows": 20},
    "augmented": {"copies": 3},
    "without": {"labels": ["1"]},
    "teacher_outputs": {"beam": 2},
}
ROWS = ("texts", "pairs", "images", "translations")
TAKES = {
    "augmented": ("texts", "pairs"),
    "jitter": ("images",),
    "without": ("texts", "pairs", "images"),
    "teacher_outputs": ("translations",),
    "masked_words": ("texts", "pairs"),
    "neighbours": ("texts", "pairs"),
}  # others take all
PAIRS = ("pairs", "translations")

MAKERS = plugins.names("data")
FITTING = [(name, rows) for name in MAKERS for rows in TAKES.get(name, ROWS)]
every_maker = pytest.mark.parametrize(("name", "rows"), FITTING)


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "model"
    save_student(small_model("bert", layers=1, head="MaskedLM"), folder)
    return folder


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, masked_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(FIELDS, "masked_words", {"model": str(masked_model), "copies": 3})


def examples_of(folder: Path, kind: str) -> tuple[Examples, Task]:
    """Of texts also odd ones, some twice, and some without a label."""
    if kind == "images":
        path = write_digits(folder / "rows.npz", 40)
    else:
        rows = [*sentences(30, 1), *((text, 1) for text in ODD), *sentences(4, 1), ("no label", "")]
        if kind in PAIRS:
            rows = [(text, rows[-place][0], label) for place, (text, label) in enumerate(rows)]  # type: ignore[misc]
        path = folder / "rows.csv"
        write_csv(path, rows, ("text1", "text2", "label") if kind in PAIRS else ("text", "label"))
    table = open_table(path)
    task, _ = make_task(None, None, labels_of(table), None, "rows", table.form, shape=table.shape)
    return store(table, task), task


def made_by(name: str, examples: Examples, task: Task, rows: str) -> Examples:
    """Pairs stand for translations where no task is named; a teacher writes them."""
    about = MakeContext(0, teacher=trained_marian(), longest=12) if rows == "translations" else MakeContext(0, task)
    made: Examples = plugins.make("data", name, FIELDS.get(name, {})).make(examples, about)
    return made


def told(examples: Examples) -> list[tuple[str, str | None, float | None]]:
    golds = (examples.gold(row) for row in examples.index)
    return [(*both, None if gold is None else float(gold)) for both, gold in zip(examples.texts(), golds, strict=True)]


@every_maker
def test_rows_are_whole(name: str, rows: str, tmp_path: Path) -> None:
    """Keys are those of the texts, a pair stays one, and what was not changed has its label."""
    examples, task = examples_of(tmp_path, rows)
    made = made_by(name, examples, task, rows)
    assert len(made) > 0
    known: dict[tuple[str, str | None], set[float | None]] = {}
    for text, pair, gold in told(examples):
        known.setdefault((text, pair), set()).add(gold)
    for row, (text, pair, gold) in zip(made.index, told(made), strict=True):
        assert made.keys[row] == key_of(text, pair)
        assert (pair is not None) == (rows in PAIRS)
        assert gold in known.get((text, pair), {0.0, 1.0, None})
    assert made.meta["rows"] == len(made.keys) and made.meta["labelled"] == int(made.labelled.sum())
    assert not list((paths.cache() / "examples").rglob(".tmp-*"))


@every_maker
def test_a_second_call_makes_the_same_also_without_the_first_ones_files(
    name: str, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, task = examples_of(tmp_path, rows)
    first, again = made_by(name, examples, task, rows), made_by(name, examples, task, rows)
    assert again.folder == first.folder and np.array_equal(again.index, first.index)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "other"))
    elsewhere = made_by(name, examples_of(tmp_path, rows)[0], task, rows)
    assert told(elsewhere) == told(first)


@every_maker
def test_makers_follow_each_other(name: str, rows: str, tmp_path: Path) -> None:
    examples, task = examples_of(tmp_path, rows)
    made = made_by(name, examples, task, rows)
    for other in (other for other, kind in FITTING if kind == rows):
        twice = made_by(other, made, task, rows)
        assert len(twice) > 0 and len(list(twice.texts())) == len(twice)


@every_maker
def test_what_is_made_is_tokenised(name: str, rows: str, tmp_path: Path) -> None:
    examples, task = examples_of(tmp_path, rows)
    made = made_by(name, examples, task, rows)
    reader = PixelReader((1, 8, 8)) if rows == "images" else small_tokenizer("bert")
    tokens = tokenise(task, made, reader, 32)
    assert (tokens.lengths(made.index) >= {"texts": 2, "pairs": 3, "images": 1, "translations": 3}[rows]).all()


REFUSED = [(name, rows) for name in TAKES for rows in ROWS[:3] if rows not in TAKES[name]]


@pytest.mark.parametrize(("name", "rows"), REFUSED)
def test_other_rows_are_refused(name: str, rows: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="omit it"):
        made_by(name, *examples_of(tmp_path, rows), "refused")


@pytest.mark.parametrize(
    ("name", "rows"), [one for one in FITTING if issubclass(plugins.find("data", one[0]), EpochDataMaker)]
)
def test_what_changes_in_an_epoch_hangs_on_the_example_alone(name: str, rows: str, tmp_path: Path) -> None:
    """Of a batch only what is read changes; another epoch reads something else."""
    examples, task = examples_of(tmp_path, rows)
    maker = plugins.make("data", name, FIELDS.get(name, {}))
    made = maker.make(examples, MakeContext(0, task))
    tokens = tokenise(task, made, PixelReader((1, 8, 8)) if rows == "images" else small_tokenizer("bert"), 32)
    source = replace(TokenisedSet(task, made, tokens, tokens), changes=(maker.change,), seed=(0, 0))
    every = np.arange(len(made))
    plain, whole, other = (source.batch(every, source.count(every), epoch) for epoch in (None, 0, 1))
    some = source.batch(every[[5, 2]], source.count(every[[5, 2]]), 0)
    for field in ("keys", "targets", "labelled", "taught"):
        assert torch.equal(getattr(plain, field), getattr(whole, field))
    for key, read in whole.student.inputs.items():
        assert torch.equal(read, whole.teacher.inputs[key]) and read.dtype == plain.student.inputs[key].dtype
        assert torch.equal(some.student.inputs[key], read[[5, 2]])
    assert any(not torch.equal(read, other.student.inputs[key]) for key, read in whole.student.inputs.items())
    assert any(not torch.equal(read, plain.student.inputs[key]) for key, read in whole.student.inputs.items())
