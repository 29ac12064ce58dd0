"""A run's folder: nothing of the user's is removed, only a marked folder is a run, and one process works in it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from potstill.errors import InputError
from potstill.recipe.schema import Recipe
from potstill.runs.folder import FolderLock, Opening, choose_folder, holds_work, mark_of, open_folder, remove_run
from potstill.system.paths import RunFolder
from tests.support.commands import potstill
from tests.support.small_models import write_csv

RECIPE = Recipe.model_validate({"teacher": "teacher", "data": [{"train": "train.csv"}]})


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with rows, a recipe under its natural name, and work that has nothing to do with it."""
    place = tmp_path / "thesis"
    (place / "teacher").mkdir(parents=True)
    write_csv(place / "train.csv", [(f"a text {i}", i % 2) for i in range(8)])
    write_csv(place / "dev.csv", [(f"another text {i}", i % 2) for i in range(8)])
    (place / "thesis.md").write_text("four years of work")
    (place / "recipe.toml").write_text(
        'teacher = "teacher"\nstudent = "keep_layers:1"\n[data]\ntrain = "train.csv"\ndev = "dev.csv"\n'
    )
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume", "never"]])
@pytest.mark.parametrize("out", [".", "../thesis", "..", "train.csv"])
def test_out_at_or_above_the_inputs_is_refused_and_nothing_is_touched(
    users: Path, out: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(users.parent)
    assert potstill("distill", "recipe.toml", "--out", out, "--quiet", *more) == 2
    assert "which the run reads; give a separate folder" in capsys.readouterr().err
    assert snapshot(users.parent) == before


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume", "never"]])
def test_a_folder_with_a_recipe_of_the_users_is_no_run(
    users: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    others = tmp_path / "rows"
    others.mkdir()
    write_csv(others / "train.csv", [(f"a text {i}", i % 2) for i in range(8)])
    before = snapshot(users)
    words = [
        "distill",
        "--teacher",
        others,
        "--train",
        others / "train.csv",
        "--student",
        "keep_layers:1",
        "--out",
        users,
    ]
    assert potstill(*words, *more) == 2
    assert "not empty and not a run of potstill" in capsys.readouterr().err
    assert snapshot(users) == before


def test_out_inside_the_teachers_folder_is_refused(users: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert potstill("distill", "recipe.toml", "--out", "teacher/student") == 2
    assert "is inside teacher" in capsys.readouterr().err
    assert not (users / "teacher/student").exists()


FILES = [
    "recipe.toml", "measurements.json", "answers.safetensors", "report.html", "student/model.safetensors",
    "student/README.md", "student-second/config.json", "baseline/tokenizer.json", "stages/0/steps.csv",
    "stages/0/tensorboard/events.out.tfevents.1", "stages/0/checkpoints/step-00000010/weights.safetensors",
    "stages/0/best/step-00000010/manifest.json", "stages/0/rewind/step-00000010/weights.safetensors",
    "stages/0/result.json", "baseline-run/stages/0/result.json", "baseline-run/grid/0001-abc/cell.json",
    "seed-1/baseline-run/stages/0/steps.csv", "finished/0/step-00000001/state.json", "grid/0001-abc/cell.json",
    "grid/0001-abc/stages/0/epochs.csv", "seed-1/student/config.json", "seed-1/run.json", "student/.tmp-1234-config.json",
]  # fmt: skip
USERS = [
    "notes.txt", "README.md", "config.json", "steps.csv", "student/notes.txt", "student/data/rows.csv", "stages/0/why.md",
    "seed-1/thoughts.txt", "student-onnx/model.onnx", "student-onnx/config.json", "grid/plot.png", "finished/0/mine.txt",
    "stages/0/rewind/notes.txt", "baseline-run/notes.txt", "result.json",
]  # fmt: skip


def test_only_what_a_run_writes_is_removed(tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"data": [RECIPE.data[0], RECIPE.data[0].model_copy(update={"name": "second"})]})
    folder = RunFolder(tmp_path / "run")
    open_folder(recipe, folder, Opening({}))
    for name in (*FILES, *USERS):
        (folder.root / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.root / name).write_text(name)
    assert holds_work(folder)
    remove_run(folder)
    assert sorted(snapshot(folder.root)) == sorted(USERS)
    assert mark_of(folder) is None


def test_the_mark_is_potstills_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    open_folder(RECIPE, folder, Opening({}))
    assert mark_of(folder) is not None
    written = folder.mark.read_bytes()
    for other in (b"", b"{}", b"[]", written[:-3], written.replace(b"potstill", b"somebody")):
        folder.mark.write_bytes(other)
        assert mark_of(folder) is None
        with pytest.raises(InputError, match="not a run of potstill"):
            choose_folder(RECIPE, folder.root, "auto", True, ())


def test_fewer_seeds_than_a_folder_holds_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    open_folder(RECIPE.model_copy(update={"seeds": 3}), folder, Opening({}))
    (folder.root / "answers.safetensors").write_text("work")
    choose_folder(RECIPE.model_copy(update={"seeds": 4}), folder.root, "auto", False, ())
    with pytest.raises(InputError, match="holds 3 seeds of this run; write --seeds 3"):
        choose_folder(RECIPE.model_copy(update={"seeds": 2}), folder.root, "auto", False, ())


def test_a_second_process_in_one_folder_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for first, second in ((False, False), (False, True), (True, False)):  # cells are shared by those that train cells
        told = pytest.raises(InputError, match="another process is working in")
        with FolderLock(folder, first), told, FolderLock(folder, second):
            pass
        assert not folder.root.exists()  # nothing was made, so nothing is left
    folder.root.mkdir()
    with FolderLock(folder, False):
        open_folder(RECIPE, folder, Opening({}))
    with FolderLock(folder, False):
        assert mark_of(folder) is not None


def test_processes_that_share_a_folder_finish_it_one_after_the_other(tmp_path: Path) -> None:
    folder, order = RunFolder(tmp_path / "run"), list[str]()
    with FolderLock(folder, True) as theirs:
        open_folder(RECIPE, folder, Opening({}))

        def finish() -> None:
            theirs.alone()
            order.append("theirs")

        with FolderLock(folder, True):
            other = threading.Thread(target=finish)
            other.start()
            other.join(0.5)
            assert order == []  # ours is still at work
            order.append("ours")
        other.join(10)
        assert order == ["ours", "theirs"]
        with pytest.raises(InputError, match="another process is working in"), FolderLock(folder, True):
            pass


def test_what_differs_from_the_run_that_lies_there_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    open_folder(RECIPE, folder, Opening({}))
    (folder.root / "answers.safetensors").write_text("work")
    other = RECIPE.model_copy(update={"length": 64, "save_every": 7, "dropout": 0.1})
    with pytest.raises(
        InputError, match=r"holds another run \(length was 128, is 64, dropout was not given, is 0.1\); write"
    ):
        choose_folder(other, folder.root, "auto", False, ())
    with pytest.raises(InputError, match=r"holds another run \(seeds was 1, is 3\); write"):
        choose_folder(RECIPE.model_copy(update={"seeds": 3}), folder.root, "auto", False, ())
