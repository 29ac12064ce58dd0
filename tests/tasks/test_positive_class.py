"""F1 of two classes says of which one it is: the rarer one in train, or the one that the user names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe.resolve import resolve
from potstill.runs.data_set import DataSet, selection_metric
from potstill.tasks.classify import TextClassification
from tests.support.prepared import prepared_data
from tests.support.small_models import sentences, small_model, write_csv


def prepared(folder: Path, share: float, *sets: str) -> DataSet:
    rows = [(text, "defect" if place < share * 40 else "ok") for place, (text, _) in enumerate(sentences(40, 0))]
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", rows[::4])
    save_student(small_model("bert"), folder / "start")
    files = [f"data.train={folder}/train.csv", f"data.dev={folder}/dev.csv", f"start={folder}/start"]
    return prepared_data(resolve(None, None, [*files, *sets]).recipe)[0]


@pytest.mark.parametrize(
    ("share", "sets", "meant"),
    [(0.1, (), "defect"), (0.9, (), "ok"), (0.1, ("data.positive=ok",), "ok"), (0.1, ("data.positive=1",), "ok")],
)
def test_the_rarer_class_or_the_named_one(tmp_path: Path, share: float, sets: tuple[str, ...], meant: str) -> None:
    data = prepared(tmp_path, share, *sets)
    assert data.task.metrics == ("accuracy", f"f1 of {meant}", "matthews")
    with pytest.raises(InputError, match="positive = 'bad' is not a class of this task; write one of defect, ok"):
        prepared(tmp_path, share, "data.positive=bad")


def test_dev_may_be_chosen_by_it_under_its_short_name(tmp_path: Path) -> None:
    recipe = resolve(None, None, ["data.train=a.csv", "metric=f1"]).recipe
    assert selection_metric(recipe, prepared(tmp_path, 0.1)) == "f1 of defect"


def test_always_saying_the_common_class_is_worth_nothing() -> None:
    """5 % defects: accuracy 0.95, and no defect found."""
    gold = np.array([0] * 5 + [1] * 95)
    task = TextClassification(("defect", "ok"), positive=0)
    always = np.tile([[0.0, 1.0]], (100, 1))
    assert task.score(gold, always) == pytest.approx({"accuracy": 0.95, "f1 of defect": 0.0, "matthews": 0.0})


def test_a_run_that_is_read_again_scores_the_same_class() -> None:
    """Also by a task that does not know which class was meant: the metric's name says it."""
    random = np.random.default_rng(0)
    gold, logits = random.integers(0, 2, 60), random.normal(size=(60, 2))
    every = np.arange(60)
    for number, label in enumerate(("defect", "ok")):
        found = TextClassification(("defect", "ok")).scorer(f"f1 of {label}", gold, logits)(every)
        assert found == pytest.approx(f1_score(gold, logits.argmax(1), pos_label=number))


def test_published_figures_are_of_the_equivalent_pairs() -> None:
    for name in ("mrpc-local", "pkd-mrpc", "pkd-qqp", "bilstm-qqp"):
        assert resolve(name).recipe.data[0].positive == "1"
