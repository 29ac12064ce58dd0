"""The form of the student that is kept to be used: which one, whether it answers as measured, and that it is whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potstill.inference.export import MARK
from potstill.measuring.measurements import Deployed, MeasuredModel, Measurements
from potstill.reporting.deployed import deployed_sentence
from potstill.runs.deploy import chosen_form, deploy_student, has_forms, missing_form, wants_form
from potstill.system.files import unseal
from potstill.tasks.registry import TASKS
from tests.support.commands import FAST, files, make_home, measurements, potstill

FAST_INT8 = {
    ("distilled", "onnx"): {"examples_per_second": 100.0},
    ("distilled int8", "onnx"): {"examples_per_second": 200.0},
}
SLOW_INT8 = {
    ("distilled", "onnx"): {"examples_per_second": 200.0},
    ("distilled int8", "onnx"): {"examples_per_second": 100.0},
}


@pytest.mark.parametrize(
    ("deploy", "agreement", "speeds", "form"),
    [
        ("auto", 0.99, FAST_INT8, "int8"),
        ("auto", 0.97, {}, "int8"),
        ("auto", None, {}, "int8"),
        ("auto", 0.969, FAST_INT8, "onnx"),
        ("auto", 0.99, SLOW_INT8, "onnx"),
        ("int8", 0.5, SLOW_INT8, "int8"),
        ("onnx", 0.99, FAST_INT8, "onnx"),
    ],
)
def test_eight_bits_are_kept_unless_they_answer_otherwise_or_are_slower(
    deploy: str, agreement: float | None, speeds: Any, form: str
) -> None:
    assert chosen_form(deploy, agreement, speeds) == form


def test_a_form_that_a_student_cannot_have_is_said_where_the_recipe_names_it() -> None:
    writer, classifier, both = (TASKS[name](()) for name in ("translate", "classify", "pretrain"))
    assert missing_form("int8", writer).startswith("deploy = 'int8' is not for task 'translate'")
    assert missing_form("onnx", both).startswith("deploy = 'onnx' is not for task 'pretrain'")
    assert [missing_form(*each) for each in (("auto", writer), ("none", both), ("int8", classifier))] == [""] * 3
    assert has_forms(classifier)


def test_a_form_is_kept_where_it_is_measured_anyway_or_asked_for() -> None:
    kept = {
        (deploy, timing)
        for deploy in ("auto", "int8", "onnx", "none")
        for timing in ("all", "none")
        if wants_form(deploy, timing)
    }
    assert kept == {("auto", "all"), ("int8", "all"), ("int8", "none"), ("onnx", "all"), ("onnx", "none")}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    """Two ONNX files, with what stands beside them."""
    (tmp_path / "files").mkdir()
    for name in ("model.onnx", "int8.onnx", "config.json", "tokenizer.json"):
        (tmp_path / "files" / name).write_bytes(name.encode() * 100)
    return tmp_path / "files/model.onnx", tmp_path / "files/int8.onnx"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("form", ["int8", "onnx"])
def test_the_folder_holds_one_model_with_its_config_and_what_it_is_compared_with(
    form: str, written: tuple[Path, Path], tmp_path: Path
) -> None:
    teacher = MeasuredModel(parameters=1000, bytes=2000)  # stored in sixteen bits
    speeds = {**FAST_INT8, ("teacher", "pytorch"): {"examples_per_second": 25.0}}
    deployed = deploy_student(form, written, tmp_path / "deployed", 0.98, speeds, teacher)
    held = contents(tmp_path / "deployed")
    assert held["model.onnx"] == (written[1] if form == "int8" else written[0]).read_bytes()
    assert (
        unseal(held[MARK])["files"] == ["config.json", "model.onnx", "tokenizer.json"] == sorted(held.keys() - {MARK})
    )
    assert (deployed.bytes, deployed.teacher_bytes) == (len(held["model.onnx"]), 4000)
    assert deployed.times_faster == (8.0 if form == "int8" else 4.0)
    assert deployed.agreement == (0.98 if form == "int8" else None)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed at its n-th change of the disk; whether it came so far."""
    if (child := os.fork()) == 0:
        left = number

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **more)

            return call

        for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (os, "mkdir"), (shutil, "copyfile")):
            setattr(module, name, counted(getattr(module, name)))
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_after_a_kill_it_is_whole_or_absent(written: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "deployed"

    def work() -> Deployed:
        return deploy_student("int8", written, place, None, {}, None)

    work()
    whole = contents(place)
    shutil.rmtree(place)
    kills = 0
    while killed_at(kills, work):
        assert not place.exists() or contents(place) == whole, kills
        kills += 1
        if place.exists():
            shutil.rmtree(place)
    assert kills > 8 and contents(place) == whole


def test_what_the_user_got_is_said_in_plain_words() -> None:
    def model(accuracy: float) -> MeasuredModel:
        return MeasuredModel(quality={"task": {"dev": {"accuracy": 0.9}, "test": {"accuracy": accuracy}}})

    measured = Measurements(
        metrics={"task": ["accuracy"]},
        models={"teacher": model(0.815), "distilled": model(0.816), "distilled int8": model(0.821)},
        deployed=Deployed(form="int8", bytes=11.2e6, teacher_bytes=90.9e6, times_faster=7.7),
    )
    assert deployed_sentence(measured) == (
        "ONNX in eight bits: 82.1 % of the test rows right (teacher 81.5), 7.7 times faster, 11.2 MB instead of 90.9; "
        "compared with the teacher in PyTorch, float32"
    )
    assert deployed_sentence(Measurements()) == ""
    again = Measurements.from_json(measured.to_json())
    assert again.deployed == measured.deployed and "deployed" not in Measurements().to_json()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 96, 40)


def test_a_run_ends_in_a_folder_that_predicts_as_it_was_measured(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over two seeds: the folder is that of the better seed, and its line in the table has a deviation."""
    out = tmp_path / "run"
    words = ["distill", "--teacher", home / "teacher/student", *files(home), *FAST, "--epochs", "2", "--no-baseline"]
    words += ["--out", out, "--seeds", "2"]
    assert potstill(*words, "--set", "deploy=int8") == 0
    assert f"{out}/deployed, ONNX in eight bits: " in capsys.readouterr().out
    measured = measurements(out)
    assert measured["deployed"]["form"] == "int8" and measured["deployed"]["agreement"] > 0.9
    assert set(measured["models"]) == {"teacher", "distilled", "distilled int8"}
    seeds = [contents(out / name / "deployed") for name in ("seed-0", "seed-1")]
    assert contents(out / "deployed") in seeds
    best = seeds.index(contents(out / "deployed"))
    student = (out / f"seed-{best}/student/model.safetensors").read_bytes()
    assert (out / "student/model.safetensors").read_bytes() == student
    assert "The folder `deployed` beside this one" in (out / "student/README.md").read_text()
    assert "Deployed, in the folder deployed: ONNX in eight bits" in (out / "report.html").read_text()
    assert potstill("predict", out / "deployed", home / "test.csv") == 0
    said = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    gold = [row.rsplit(",", 1)[1] for row in (home / "test.csv").read_text().splitlines()[1:]]
    right = sum(ours == theirs for ours, theirs in zip(said, gold, strict=True)) / len(gold)
    of_seed = measurements(out / f"seed-{best}")["models"]["distilled int8"]["quality"]["task"]["test"]["accuracy"]
    assert abs(right - of_seed) <= 1.5 / len(gold)  # in eight bits, a prediction depends a little on the rows beside it

    (out / "deployed/mine.txt").write_text("notes")  # --overwrite removes what potstill wrote, and nothing else
    assert potstill(*words, "--overwrite") == 0
    assert [path.name for path in (out / "deployed").iterdir()] == ["mine.txt"]
    assert "deployed" not in measurements(out)
