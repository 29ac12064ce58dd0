"""What every data maker promises. A file in data/ is tested by existing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small import sentences, write_csv

from potstill import paths, plugins
from potstill.data import Context
from potstill.examples import Examples, key_of, store
from potstill.prepare import labels_of
from potstill.rows import open_table
from potstill.tasks import Task, make_task
from potstill.tokens import tokenise

ODD = ["", "   ", "x", "日本 の 映画", "ﷺ \u200f شكرا", "🎬 " * 40, "[MASK] film", "a/b // \\ | &slash;", "w" * 5000]
FIELDS = {"sample": {"rows": 20}, "augmented": {"copies": 3}}

every_maker = pytest.mark.parametrize("name", plugins.names("data"))
with_pairs = pytest.mark.parametrize("paired", [False, True], ids=["texts", "pairs"])


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))


def rows_of(folder: Path, paired: bool) -> tuple[Examples, Task]:
    """Also odd ones, some twice, and some without a label."""
    rows = [*sentences(30, 1), *((text, 1) for text in ODD), *sentences(4, 1), ("no label", "")]
    if paired:
        rows = [(text, rows[-place][0], label) for place, (text, label) in enumerate(rows)]  # type: ignore[misc]
    write_csv(folder / "rows.csv", rows, ("text1", "text2", "label") if paired else ("text", "label"))
    table = open_table(folder / "rows.csv")
    task, _ = make_task(None, None, labels_of(table), None, "rows.csv")
    return store(table, task), task


def told(examples: Examples) -> list[tuple[str, str | None, float | None]]:
    golds = (examples.gold(row) for row in examples.index)
    return [(*both, None if gold is None else float(gold)) for both, gold in zip(examples.texts(), golds, strict=True)]


@every_maker
@with_pairs
def test_rows_are_whole(name: str, paired: bool, tmp_path: Path) -> None:
    """Keys are those of the texts, a pair stays one, and what was not changed has its label."""
    examples, task = rows_of(tmp_path, paired)
    made = plugins.make("data", name, FIELDS.get(name, {})).make(examples, Context(0, task))
    assert len(made) > 0
    known: dict[tuple[str, str | None], set[float | None]] = {}
    for text, pair, gold in told(examples):
        known.setdefault((text, pair), set()).add(gold)
    for row, (text, pair, gold) in zip(made.index, told(made), strict=True):
        assert made.keys[row] == key_of(text, pair)
        assert (pair is None) != paired
        assert gold in known.get((text, pair), {0.0, 1.0, None})
    assert made.meta["rows"] == len(made.keys) and made.meta["labelled"] == int(made.labelled.sum())
    assert not list(paths.examples().rglob(".tmp-*"))


@every_maker
@with_pairs
def test_a_second_call_makes_the_same_also_without_the_first_ones_files(
    name: str, paired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, task = rows_of(tmp_path, paired)
    maker = plugins.make("data", name, FIELDS.get(name, {}))
    first = maker.make(examples, Context(0, task))
    again = maker.make(examples, Context(0, task))
    assert again.folder == first.folder and np.array_equal(again.index, first.index)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "other"))
    elsewhere = maker.make(rows_of(tmp_path, paired)[0], Context(0, task))
    assert told(elsewhere) == told(first)


@every_maker
def test_makers_follow_each_other(name: str, tmp_path: Path) -> None:
    examples, task = rows_of(tmp_path, False)
    for other in plugins.names("data"):
        made = plugins.make("data", name, FIELDS.get(name, {})).make(examples, Context(0, task))
        twice = plugins.make("data", other, FIELDS.get(other, {})).make(made, Context(0, task))
        assert len(twice) > 0 and len(list(twice.texts())) == len(twice)


@every_maker
def test_what_is_made_is_tokenised(name: str, tmp_path: Path) -> None:
    from small import small_tokenizer

    examples, task = rows_of(tmp_path, True)
    made = plugins.make("data", name, FIELDS.get(name, {})).make(examples, Context(0, task))
    tokens = tokenise(task, made, small_tokenizer("bert"), 32)
    assert (tokens.lengths(made.index) >= 3).all()
