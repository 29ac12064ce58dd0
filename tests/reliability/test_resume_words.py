"""--resume auto, PATH and never; a folder that holds something else is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from potstill.runs import stages
from potstill.system import interrupts
from potstill.training import checkpoints
from potstill.training.loop import Step, Steps
from tests.reliability.processes import same_student
from tests.support.commands import FAST, patient, potstill


@pytest.fixture
def stopped(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str | Path], Path]:
    """A run that was asked to stop at step 20 of 30, with its checkpoints of steps 10 and 20; and its command."""
    words = [*patient(home), "--epochs", "1", "--set", "save_every=10", "--out", tmp_path / "run", *FAST]

    class AskedAt20(Steps):
        def __next__(self) -> Step:
            step = super().__next__()
            if step.step == 11:
                shutil.copytree(tmp_path / "run/stages/0/checkpoints/step-00000010", tmp_path / "step-00000010")
            if step.step == 20:
                interrupts._received.append(15)
            return step

    with monkeypatch.context() as patched:
        patched.setattr(stages, "train", AskedAt20)
        assert potstill(*words) == 143
    newest = checkpoints.newest(tmp_path / "run/stages/0/checkpoints")
    assert newest is not None and newest.step == 20
    shutil.copytree(tmp_path / "step-00000010", tmp_path / "run/stages/0/checkpoints/step-00000010")
    return words, tmp_path / "run"


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert potstill(*patient(home), "--epochs", "1", "--out", out, *FAST) == 0
    return out


def loud(words: list[str | Path]) -> list[str | Path]:
    return [word for word in words if word != "--quiet"]


@pytest.mark.slow
def test_auto_goes_on_from_the_newest(
    stopped: tuple[list[str | Path], Path], whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = stopped
    assert potstill(*loud(words)) == 0
    assert "continuing at step 20 from" in capsys.readouterr().err
    assert same_student(run, whole)


def test_a_path_goes_on_from_there(
    stopped: tuple[list[str | Path], Path], whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = stopped
    assert potstill(*loud(words), "--resume", run / "stages/0/checkpoints/step-00000010") == 0
    assert "continuing at step 10 from" in capsys.readouterr().err
    assert same_student(run, whole)


@pytest.mark.slow
def test_a_damaged_path_is_refused_and_auto_passes_it_over(
    stopped: tuple[list[str | Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = stopped
    newest = run / "stages/0/checkpoints/step-00000020"
    (newest / "weights.safetensors").write_bytes(b"")
    assert potstill(*words, "--resume", newest) == 2
    assert "is damaged" in capsys.readouterr().err
    assert potstill(*loud(words)) == 0
    assert "continuing at step 10 from" in capsys.readouterr().err


@pytest.mark.slow
def test_never_refuses_what_was_begun_and_overwrite_replaces_it(
    stopped: tuple[list[str | Path], Path], whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = stopped
    before = sorted(run.rglob("*"))
    assert potstill(*words, "--resume", "never") == 2
    assert "holds this run already; write --overwrite" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before
    assert potstill(*loud(words), "--resume", "never", "--overwrite") == 0
    assert "continuing" not in capsys.readouterr().err
    assert same_student(run, whole)


def test_a_folder_that_holds_something_else_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    for more in ([], ["--overwrite"], ["--resume", "never"]):
        assert potstill(*patient(home), "--out", tmp_path / "run", *more) == 2
        assert "not empty and not a run" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
