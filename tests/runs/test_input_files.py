"""What a run is made from is known by content: a change is named, and the run goes on only by the user's word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from potstill.models import student as students
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet
from potstill.runs.input_files import VERSIONS, changes, input_digests, input_paths
from tests.support.commands import potstill
from tests.support.faults import flip
from tests.support.small_models import sentences, small_model, write_csv

OPTIONS = ["--student", "keep_layers:1", "--epochs", "1", "--batch", "8", "--length", "16", "--no-baseline", "--force"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a teacher, another start, and a finished run of them in `run`; all paths of it are relative."""
    home = tmp_path_factory.mktemp("inputs")
    for name, rows, seed in (("train", 24, 1), ("dev", 12, 2), ("test", 12, 3)):
        write_csv(home / f"{name}.csv", sentences(rows, seed))
    (home / "more.txt").write_text("".join(f"{text}\n" for text, _ in sentences(8, 4)))
    students.save_student(small_model("bert"), home / "teacher")
    students.save_student(small_model("bert", seed=1), home / "start")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        assert potstill(*words()) == 0
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be changed."""
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def words(*more: str) -> list[str]:
    files = ["--teacher", "teacher", "--start", "start", "--unlabelled", "more.txt"]
    files += [word for name in ("train", "dev", "test") for word in (f"--{name}", f"{name}.csv")]
    return ["distill", *files, *OPTIONS, "--set", "timing=none", "--out", "run", "--quiet", *more]


def begun(home: Path) -> None:
    """As if the run had been stopped after its training."""
    (home / "run/measurements.json").unlink()


def last_letter(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[:-2] + ("0" if text[-2] == "1" else "1") + text[-1])


CHANGES: dict[str, Callable[[Path], None]] = {
    "train.csv": last_letter,
    "dev.csv": last_letter,
    "test.csv": last_letter,
    "more.txt": last_letter,
    "teacher/model.safetensors": lambda path: flip(path, 8 * (path.stat().st_size - 3)),
    "teacher/config.json": lambda path: path.write_text(path.read_text().replace("gelu", "tanh")),
    "teacher/tokenizer.json": lambda path: path.write_text(path.read_text() + " "),
    "start/model.safetensors": lambda path: flip(path, 8 * (path.stat().st_size - 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_by_a_letter_or_bit_is_named_whether_the_run_is_finished_or_not(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    CHANGES[name](home / name)
    for finished in (True, False):
        if not finished:
            begun(home)
        assert potstill(*words()) == 2
        told = capsys.readouterr().err
        assert f"changed since: {name}. Write --overwrite to start again, --accept-changes" in told


def test_what_was_not_changed_goes_on(home: Path) -> None:
    assert potstill(*words()) == 0  # finished: printed again
    begun(home)
    before = (home / "run/student/model.safetensors").read_bytes()
    assert potstill(*words()) == 0
    assert (home / "run/student/model.safetensors").read_bytes() == before
    (home / "teacher/README.md").write_text("words about a model do not change what it says")
    shutil.rmtree(home / "start")  # a finished run does not need it any more
    assert potstill(*words()) == 0


def test_by_the_users_word_it_goes_on_and_says_so_in_its_figures(home: Path) -> None:
    last_letter(home / "train.csv")
    figures = (home / "run/measurements.json").read_bytes()
    assert potstill(*words("--accept-changes")) == 0
    assert (home / "run/measurements.json").read_bytes() == figures
    begun(home)
    assert potstill(*words("--accept-changes")) == 0
    assert json.loads((home / "run/measurements.json").read_text())["changed_inputs"] == ["train.csv"]
    assert potstill(*words()) == 0  # what was accepted is what the run has now


def test_a_change_between_two_seeds_is_noticed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = [*words("--seeds", "2")]
    several[several.index("run")] = "seeds"
    assert potstill(*several) == 0
    shutil.rmtree(home / "seeds/seed-1")
    (home / "seeds/measurements.json").unlink()
    last_letter(home / "train.csv")
    assert potstill(*several) == 2
    assert "changed since: train.csv" in capsys.readouterr().err


def test_other_versions_are_named_until_a_run_is_finished(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert potstill(*words()) == 0
    begun(home)
    assert potstill(*words()) == 2
    assert "changed since: torch (" in capsys.readouterr().err


def test_a_file_that_changes_while_it_is_read_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from potstill.runs import distill as run

    class Meanwhile(run.DataSets):
        def of(self, *arguments: Any) -> list[DataSet]:
            found = super().of(*arguments)
            last_letter(home / "dev.csv")
            return found

    monkeypatch.setattr(run, "DataSets", Meanwhile)
    assert potstill(*words("--overwrite")) == 2
    assert "dev.csv changed while it was read" in capsys.readouterr().err
    assert (home / "run/measurements.json").exists()  # the earlier run is still there


def test_inputs_of_every_kind_have_digests(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (home / "en.txt").write_text("a\nb\n")
    (home / "de.txt").write_text("c\nd\n")
    (home / "saved").mkdir()
    (home / "saved/state.json").write_text("{}")
    (home / "saved/data-00000-of-00001.arrow").write_bytes(b"rows")
    (home / "a-images-idx3-ubyte").write_bytes(b"pixels")
    (home / "a-labels-idx1-ubyte").write_bytes(b"labels")
    (tmp_path / "plugged/methods").mkdir(parents=True)
    (tmp_path / "plugged/methods/mine.py").write_text(
        "from dataclasses import dataclass\nfrom potstill.api import Method\n@dataclass(frozen=True)\nclass Mine(Method):\n"
        "    alpha: float = 1.0\n    def wants(self, ours, theirs): ...\n    def losses(self, student, teacher, batch): ...\n"
    )
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    recipe = Recipe.model_validate(
        {
            "teacher": "somebody/on-the-hub",
            "student": [],
            "data": [{"train": "en.txt,de.txt", "dev": "saved", "test": {"test": "a-images-idx3-ubyte"}}],
            "stage": [{"method": {"name": "mine"}}],
        }
    )
    found = input_digests(recipe)
    files = {file for part in found.values() for file in part}
    assert {"en.txt", "de.txt", "saved/data-00000-of-00001.arrow", "saved/state.json"} <= files
    assert {"a-images-idx3-ubyte", "a-labels-idx1-ubyte", str(tmp_path / "plugged/methods/mine.py")} <= files
    assert input_paths(recipe) == [Path("en.txt"), Path("de.txt"), Path("saved"), Path("a-images-idx3-ubyte")]
    (home / "saved/data-00000-of-00001.arrow").write_bytes(b"Rows")
    (tmp_path / "plugged/methods/mine.py").write_text("changed")
    assert changes(found, input_digests(recipe)) == [
        "saved/data-00000-of-00001.arrow",
        str(tmp_path / "plugged/methods/mine.py"),
    ]
    assert VERSIONS in found


def test_a_file_that_is_added_to_a_folder_of_texts_is_a_change(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (pool / "below").mkdir(parents=True)
    (pool / "below" / "a.txt").write_text("one")
    (pool / "README.md").write_text("not read")
    recipe = resolve(
        None, None, ["data.train=train.csv", f"data.unlabelled={pool}", "student=bag", "method=hard_labels"]
    ).recipe
    before = input_digests(recipe)
    (pool / "README.md").write_text("still not read")
    assert input_digests(recipe) == before and list(before[str(pool)]) == [str(pool / "below" / "a.txt")]
    (pool / "b.csv").write_text("text\ntwo\n")
    assert changes(before, input_digests(recipe)) == [str(pool / "b.csv")]
