"""Paths that somebody wrote: ~ is their home, what cannot be is refused before any work, and nothing foreign is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from potstill.app import cli
from potstill.errors import InputError, TrainingError
from potstill.inference import export as exported
from potstill.inference import predict as predicting
from potstill.models.generation.decoding import decoder_of
from potstill.models.loading import load_config
from potstill.models.student import load_student, save_student
from potstill.recipe.flags import parse_test_files
from potstill.recipe.resolve import resolve
from potstill.reporting.page import write_report
from potstill.runs import distill as run
from potstill.runs import folder as run_folder
from potstill.runs import study
from potstill.system import paths
from tests.support import run_folders as made_runs
from tests.support.commands import potstill
from tests.support.small_models import sentences, small_model, write_csv

LONG = "x" * 300
ROWS = ["--train", "train.csv", "--student", "keep_layers:1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    save_student(small_model("bert"), folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> Path:
    """A folder with rows, a model, a finished run, and things that are in the way; it is the home, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_csv(tmp_path / "train.csv", sentences(6, 1))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "model").symlink_to(model)
    made_runs.write_run(tmp_path / "run", made_runs.measurements(), logs=False)
    return tmp_path


BAD_OUTS = ["file/below", f"{LONG}", f"folder/{LONG}/below", "loop/below", "/dev/null/run"]
NEEDS = {
    "distill": ["distill", "--teacher", "model", *ROWS],
    "finetune": ["finetune", "model", "--train", "train.csv"],
    "train": ["train", "--shape", "mlp", "--train", "train.csv"],
    "plan": ["plan", "--teacher", "model", *ROWS],
    "report": ["report", "run"],
    "study": ["study", "size-curve", "--teacher", "model", "--train", "train.csv"],
    "export": ["export", "model", "--to", "onnx"],
}
LINES = [[*words, "--out", out] for words in NEEDS.values() for out in BAD_OUTS]
LINES += [[*NEEDS[name], "--out", "file"] for name in ("distill", "finetune", "study", "export", "report")]
LINES += [[*NEEDS[name], "--out", "folder"] for name in ("distill", "export", "report")]
LINES += [["augment", "train.csv", "--out", f"{out}.csv"] for out in BAD_OUTS]
for bad in (
    "",
    "nosuch",
    "./nosuch",
    "file",
    "folder",
    "loop",
    LONG,
    f"./{LONG}",
    "/dev/null",
    "file/below",
    "~/nosuch",
):
    LINES += [
        ["measure", "model", "--data", bad],
        ["predict", bad, "train.csv"],
        ["predict", "model", bad or "folder"],
        ["translate", bad, "file"],
        ["export", bad, "--to", "onnx", "--out", "new"],
        ["report", bad],
        ["show", bad or "folder"],
        ["augment", bad, "--out", "new.csv"],
        ["distill", "--teacher", bad or "folder", *ROWS, "--out", "new"],
        ["distill", "--teacher", "model", "--train", bad or "folder", "--student", "keep_layers:1", "--out", "new"],
        [
            "distill",
            "--teacher",
            "model",
            *ROWS,
            "--resume",
            bad if bad not in ("", "folder") else LONG,
            "--out",
            "new",
        ],
    ]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:60])
def test_a_path_that_cannot_be_is_wrong_input(
    line: list[str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 and one message; nothing is trained, written or replaced."""
    for name in ("best_of_grid", "measure_run"):
        monkeypatch.setattr(run, name, lambda *given, **more: pytest.fail("it was trained"))
    before = sorted(here.rglob("*"))
    assert potstill(*line) == 2, capsys.readouterr().err
    told = capsys.readouterr().err
    assert told.startswith(("potstill: ", "Usage:", " \n Usage:", "\n")) and "stays usable" not in told
    assert "Traceback" not in told
    assert (here / "file").read_text() == "mine" and sorted(here.rglob("*")) == before


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(InputError, match="NUL"):
        paths.output_path("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="no permission to write"):
        paths.output_path(tmp_path / "run")


def test_what_was_saved_is_spoken_of_only_where_something_was(tmp_path: Path) -> None:
    folder = paths.RunFolder(tmp_path / "run")
    full = OSError(28, "No space left on device", "somewhere")
    with pytest.raises(OSError, match="No space left"), run_folder.disk_errors_in(folder):
        raise full
    (tmp_path / "run/student").mkdir(parents=True)
    (tmp_path / "run/student/model.safetensors").touch()
    with (
        pytest.raises(TrainingError, match="somewhere; what was saved before stays usable"),
        run_folder.disk_errors_in(folder),
    ):
        raise full


@pytest.mark.parametrize(("number", "code"), [(2, 2), (13, 2), (20, 2), (36, 2), (28, 1), (5, 1)])
def test_an_error_of_the_system_ends_in_its_code(
    number: int, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    told = capsys.readouterr().err
    assert "somewhere; " in told and "stays usable" not in told


def test_the_home_is_meant_by_its_sign_wherever_a_path_is_taken(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", "~/own-cache")
    assert paths.cache() == here / "own-cache"
    assert paths.memory("~/kept") == here / "kept"
    assert paths.RunFolder("~/x").student == here / "x/student"
    assert run_folder.choose_folder(SimpleNamespace(grid={}), "~/new", "auto", False, ())[0].root == here / "new"  # type: ignore[arg-type]
    assert load_student("~/model").model.config.num_labels == 2
    assert len(list(predicting.predict("~/model", ["a good film"]))) == 1
    assert load_config("~/model").num_labels == 2
    save_student(small_model("bert"), "~/saved")  # type: ignore[arg-type]
    assert (here / "saved/model.safetensors").exists()
    (here / "mine.toml").write_text('[data]\ntrain = "train.csv"\n')
    assert resolve("~/mine.toml").recipe.data[0].train == "train.csv"
    assert parse_test_files(["~/train.csv"]) == {"test": "~/train.csv"}
    assert write_report([Path("~/run")], Path("~/page.html")) == here / "page.html"
    assert potstill("augment", "~/train.csv", "--out", "~/more.csv", "--quiet") == 0 and (here / "more.csv").exists()
    with pytest.raises(InputError, match="is a file"):
        exported.export_student("~/model", None, "~/file", None, None, None, False)  # type: ignore[arg-type]
    with pytest.raises(InputError), decoder_of("~/folder"):
        pass
    assert not (here / "~").exists()


def test_a_page_replaces_pages_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "precious.html").write_text("<html>my own")
    assert potstill("report", "run", "--out", "precious.html") == 2
    assert "--overwrite" in capsys.readouterr().err and (here / "precious.html").read_text() == "<html>my own"
    assert potstill("report", "run", "--out", "page.html") == 0
    assert potstill("report", "run", "--out", "page.html") == 0  # its own page is made anew
    assert potstill("report", "run", "--out", "precious.html", "--overwrite") == 0
    assert "my own" not in (here / "precious.html").read_text()


def test_a_study_replaces_studies_and_nothing_else(here: Path) -> None:
    (here / "folder/study.md").write_text("# My own study\n")
    with pytest.raises(InputError, match=r"study\.md was not written by potstill study"):
        study.refuse_foreign_page(here / "folder", False)
    (here / "folder/study.md").write_text(f"# Size curve\n\n{study.MARK}\n")
    (here / "folder/study-2.svg").touch()
    study.refuse_foreign_page(here / "folder", False)
    (here / "folder/study.md").unlink()
    with pytest.raises(InputError, match=r"study-2\.svg was not written by potstill study"):
        study.refuse_foreign_page(here / "folder", False)


def test_rows_and_exports_are_replaced_only_if_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.csv").write_text("text,label\na,b\n")
    assert potstill("augment", "train.csv", "--out", "mine.csv") == 2
    assert potstill("export", "model", "--to", "onnx", "--out", "folder", "--overwrite") == 2
    assert (here / "folder/notes.txt").read_text() == "mine" and (here / "mine.csv").read_text().startswith("text,")
