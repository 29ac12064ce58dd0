"""Neighbours: of many texts those near the labelled rows are chosen, in a run and by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from potstill.data.examples import Examples
from potstill.data.making import MakeContext
from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe import plugins
from potstill.recipe.resolve import resolve
from potstill.runs.data_set import DataSet
from tests.data.test_unlabelled import Heard
from tests.support.commands import potstill
from tests.support.prepared import prepared_data
from tests.support.small_models import sentences, small_model, write_csv

FILLER = "seven 1999 city city Paris yesterday"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a pool of rows with one more word among texts of other words."""
    home = tmp_path_factory.mktemp("home")
    for name, count, seed in (("train", 10, 1), ("dev", 20, 2), ("test", 20, 3)):
        write_csv(home / f"{name}.csv", sentences(count, seed))
    near = [f"{text} !" if len(text.split()) > 3 else f"{text} film" for text, _ in sentences(10, 4)]
    other = [" ".join([FILLER, *[f"{number}"] * 3]) for number in range(200)]
    (home / "pool.txt").write_text("\n".join([*other[:100], *near, *other[100:]]))
    save_student(small_model("bert"), home / "teacher")
    return home


def words(home: Path) -> list[str]:
    rows = [f"data.{split}={home}/{split}.csv" for split in ("train", "dev", "test")]
    return [f"teacher={home}/teacher", *rows, f"data.unlabelled={home}/pool.txt", "force=true", "length=32"]


def make(home: Path, **fields: object) -> tuple[Examples, Examples, list[str], DataSet]:
    data = prepared_data(resolve(None, None, words(home)).recipe)[0]
    heard = Heard()
    context = MakeContext(0, data.task, heard, data.loaded_teacher, data.length)
    made = plugins.make("data", "neighbours", fields).make(data.train, context)
    return data.train, made, heard.told, data


@pytest.mark.parametrize("by", ["words", "teacher"])
def test_labelled_rows_stay_and_the_nearest_texts_are_added(home: Path, by: str) -> None:
    train, made, told, _ = make(home, k=2, by=by)
    assert len(made.labelled_only) == 10 and 0 < len(made) - 10 <= 20
    assert np.array_equal(made.index, np.sort(made.index))
    if by == "words":  # of a teacher with random weights, states say little
        texts = [text for text, _ in made.texts()][10:]
        assert not any(FILLER in text for text in texts[:5])
    assert told[0].startswith(
        f"neighbours: {len(made) - 10} of {len(train) - 10} texts without labels are used, the nearest"
    )
    assert len(told) == 4 and ", near '" in told[1]
    assert make(home, k=2, by=by)[1].index_hash == made.index_hash


def test_at_most_so_many_rows_and_all_if_not_more_are_asked_for(home: Path) -> None:
    assert len(make(home, k=8, rows=5)[1]) == 15
    train, made, told, _ = make(home, k=100)
    assert made is train and told == [
        f"neighbours: all {len(train) - 10} texts without labels are used, since not more are asked for"
    ]


def test_what_is_refused(home: Path) -> None:
    train, _, _, data = make(home, k=1)
    maker = plugins.make("data", "neighbours", {"k": 1})
    with pytest.raises(InputError, match="no row has a label"):
        maker.make(train.take(np.arange(10, len(train))), MakeContext(0, data.task))
    with pytest.raises(InputError, match="name one with --teacher"):
        maker.make(train, MakeContext(0, data.task))


def test_a_run_learns_from_the_neighbours(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [part for split in ("train", "dev", "test") for part in (f"--{split}", home / f"{split}.csv")]
    given = [
        "distill",
        "--teacher",
        home / "teacher",
        *rows,
        "--unlabelled",
        home / "pool.txt",
        "--unlabelled",
        home / "dev.csv",
    ]
    given += [
        "--student",
        "keep_layers:1",
        "--epochs",
        "1",
        "--force",
        "--set",
        "stage.data=neighbours:1",
        "--set",
        "timing=none",
    ]
    assert potstill(*given, "--length", "32", "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert "neighbours: " in said and "20 of 20 rows are also in dev or test and are left out" in said
