"""A recipe that leaves the precision open gets the faster one, and a run never mixes two."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from potstill.measuring.measure_models import measure_models
from potstill.models import inference
from potstill.recipe.schema import Recipe
from potstill.runs import measure, precision, teachers
from potstill.runs.planning import plan
from potstill.system import processor
from potstill.training.teacher import forms
from tests.support.commands import FAST, killed_after, make_home, measurements, patient, potstill

AUTO = [*FAST, "--set", "precision=auto", "--epochs", "1"]
LOUD = [word for word in AUTO if word != "--quiet"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 96, 40)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A processor and a student that gain by bfloat16."""
    monkeypatch.setattr(precision, "bfloat16_gain", lambda device: 4.1)
    monkeypatch.setattr(precision, "student_gain", lambda run: 2.4)
    return monkeypatch


def recipe(run: Path) -> dict[str, str]:
    return tomllib.loads((run / "recipe.toml").read_text())


def test_the_faster_precision_is_the_default() -> None:
    plain = Recipe.model_validate({"data": {"train": "train.csv"}})
    assert (plain.precision, plain.teacher_precision) == ("auto", "auto")


def test_bfloat16_is_chosen_said_and_written_where_it_is_faster(
    home: Path, tmp_path: Path, fast: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potstill(*patient(home), *LOUD, "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert said.count("multiplies 4.1 times faster in bfloat16, and trains this student 2.4 times faster") == 1
    assert recipe(tmp_path / "run")["precision"] == "bfloat16"


def test_a_plan_says_what_the_machine_has_and_foretells_with_the_precision_of_the_run(
    home: Path, tmp_path: Path, fast: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks: list[torch.dtype] = []
    fast.setattr(plan, "matmul_peak", lambda device, dtype: peaks.append(dtype) or 1e12)
    assert potstill("plan", *patient(home)[1:], *AUTO, "--out", tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert f"{processor.described(1)}: it multiplies " in said
    assert "the student is trained in bfloat16, the teacher is asked in float32" in said
    assert peaks == [torch.bfloat16]


@pytest.mark.parametrize(("here", "gain"), [(1.0, 9.0), (4.1, 0.9)])
def test_float32_stays_where_the_processor_or_the_student_gains_nothing(
    home: Path, tmp_path: Path, fast: pytest.MonkeyPatch, here: float, gain: float
) -> None:
    fast.setattr(precision, "bfloat16_gain", lambda device: here)
    fast.setattr(precision, "student_gain", lambda run: gain)
    assert potstill(*patient(home), *AUTO, "--out", tmp_path / "auto") == 0
    assert potstill(*patient(home), *FAST, "--epochs", "1", "--out", tmp_path / "plain") == 0
    weights = [(tmp_path / name / "student/model.safetensors").read_bytes() for name in ("auto", "plain")]
    assert recipe(tmp_path / "auto")["precision"] == "float32" and weights[0] == weights[1]


GAINS = {"float32": 1.0, "bfloat16": 4.1}  # of a machine that chooses it


@pytest.mark.parametrize(("begun", "other"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_run_goes_on_in_the_precision_that_it_was_begun_with(
    begun: str, other: str, home: Path, tmp_path: Path, fast: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast.setattr(precision, "bfloat16_gain", lambda device: GAINS[begun])
    run = [*patient(home), *AUTO, "--out", tmp_path / "run"]
    assert potstill(*run) == 0
    (tmp_path / "run/measurements.json").unlink()
    fast.setattr(precision, "bfloat16_gain", lambda device: GAINS[other])  # as on another machine
    assert potstill(*run) == 0
    assert recipe(tmp_path / "run")["precision"] == begun
    assert potstill(*run, "--set", f"precision={other}") == 2
    problem = capsys.readouterr().err
    assert f'precision was "{begun}", is "{other}"' in problem and "write --overwrite" in problem
    assert potstill(*run, "--overwrite") == 0
    assert recipe(tmp_path / "run")["precision"] == other


def test_killed_and_resumed_it_has_the_same_bits_in_bfloat16(
    home: Path, tmp_path: Path, fast: pytest.MonkeyPatch
) -> None:
    """Dropout and micro-batches on, killed in the middle of an epoch; the run that goes on is on a machine without."""
    more = [*patient(home), *AUTO, "--set", "dropout=0.1", "--set", "tokens=100", "--set", "save_every=3"]
    assert potstill(*more, "--out", tmp_path / "whole") == 0
    child = multiprocessing.get_context("fork").Process(
        target=killed_after, args=(2, [*more, "--out", tmp_path / "run"])
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    fast.setattr(precision, "bfloat16_gain", lambda device: 1.0)
    assert potstill(*more, "--out", tmp_path / "run") == 0
    assert potstill(*more, "--set", "precision=float32", "--out", tmp_path / "plain") == 0
    whole, run, plain = (
        (tmp_path / name / "student/model.safetensors").read_bytes() for name in ("whole", "run", "plain")
    )
    assert whole == run != plain


def test_seeds_and_cells_share_one_precision(home: Path, tmp_path: Path, fast: pytest.MonkeyPatch) -> None:
    run = [*patient(home), *AUTO, "--set", "seeds=2", "--out", tmp_path / "run"]
    assert potstill(*run, "--cell", "seed-1") == 0
    fast.setattr(precision, "student_gain", lambda run: 0.5)
    assert potstill(*run) == 0
    assert {recipe(tmp_path / "run" / name)["precision"] for name in (".", "seed-0", "seed-1")} == {"bfloat16"}


@pytest.mark.parametrize(("gain", "chosen"), [(1.19, "float32"), (1.21, "bfloat16")])
def test_the_student_is_really_timed(
    gain: float, chosen: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, in both; and one that gains less than a fifth stays in float32."""
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(precision, "bfloat16_gain", lambda device: 4.1)
    timed: list[str] = []

    def seconds(works: Mapping[str, Callable[[], object]], turns: int, limit: float) -> dict[str, float]:
        timed.extend(works)
        for work in works.values():
            work()
        return {"float32": gain, "bfloat16": 1.0}

    monkeypatch.setattr(precision, "best_seconds", seconds)
    assert potstill(*patient(home), *AUTO, "--out", tmp_path / "run") == 0
    assert recipe(tmp_path / "run")["precision"] == chosen and timed == ["float32", "bfloat16"]


@pytest.fixture
def asked_much(fast: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Few rows count as many that take long, and every form as clearly faster."""
    fast.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    fast.setattr(teachers, "MANY_ROWS", 50)
    fast.setattr(forms, "bfloat16_gain", lambda device: 4.1)
    fast.setattr(forms, "LONG_ENOUGH", 0.0)
    fast.setattr(forms, "FASTER", 0.0)
    return fast


def memories(cache: Path) -> list[str]:
    """The forms of the memories in this cache."""
    return [folder.name.partition("-")[2] or "float32" for folder in (cache / "memory").iterdir()]


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_the_teacher_is_asked_in_bfloat16_if_its_answers_are_the_same(
    home: Path, tmp_path: Path, asked_much: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bound: float
) -> None:
    """A method that compares states leaves no other choice."""
    asked_much.setattr(forms, "MOST_APART", bound)
    asked_much.setattr(forms, "SAME_CLASS", 0.5)
    asked_much.setattr(forms, "best_seconds", lambda works, turns: as_fast(works, "bfloat16"))
    assert potstill(*patient(home), *LOUD, "--out", tmp_path / "run") == 0
    chosen = "bfloat16" if bound else "float32"
    assert f"the teacher is asked in {chosen}: " in capsys.readouterr().err
    assert memories(tmp_path / "cache") == [chosen] == [recipe(tmp_path / "run")["teacher_precision"]]


def as_fast(works: Mapping[str, Callable[[], object]], fastest: str) -> dict[str, float]:
    """Run each work once; as if one of them took half the time of the others."""
    for work in works.values():
        work()
    return {name: 0.5 if name == fastest else 1.0 for name in works}


@pytest.mark.parametrize("form", ["onnx", "int8"])
def test_where_logits_are_all_that_is_asked_the_teacher_may_be_a_file_and_stays_it(
    home: Path, tmp_path: Path, asked_much: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    asked_much.setattr(forms, "MOST_APART", 1.0)
    asked_much.setattr(forms, "SAME_CLASS", 0.5)
    asked_much.setattr(forms, "best_seconds", lambda works, turns: as_fast(works, form))
    run = [*patient(home), "--method", "soft_targets", *LOUD, "--out", tmp_path / "run"]
    assert potstill(*run) == 0
    said = capsys.readouterr().err
    assert said.count(f"the teacher is asked in {form}: ") == 1 and "same class" in said
    assert memories(tmp_path / "cache") == [form] == [recipe(tmp_path / "run")["teacher_precision"]]
    before = (tmp_path / "run/student/model.safetensors").read_bytes()
    (tmp_path / "run/measurements.json").unlink()
    shutil.rmtree(tmp_path / "cache/speed")  # as on another machine, on which it would not be measured to be faster
    asked_much.setattr(forms, "best_seconds", lambda works, turns: as_fast(works, "float32"))
    assert potstill(*run) == 0
    assert recipe(tmp_path / "run")["teacher_precision"] == form and memories(tmp_path / "cache") == [form]
    assert (tmp_path / "run/student/model.safetensors").read_bytes() == before
    assert potstill(*run, "--set", "teacher_precision=float32") == 2
    assert f'teacher_precision was "{form}", is "float32"' in capsys.readouterr().err


def test_what_a_teacher_has_answered_in_float32_is_not_asked_again(
    home: Path, tmp_path: Path, asked_much: pytest.MonkeyPatch
) -> None:
    asked_much.setattr(forms, "MOST_APART", 1.0)
    assert potstill(*patient(home), *FAST, "--epochs", "1", "--out", tmp_path / "plain") == 0
    asked_much.setattr(forms, "best_seconds", lambda works, turns: pytest.fail("nothing is to be asked"))
    assert potstill(*patient(home), *AUTO, "--out", tmp_path / "run") == 0
    assert recipe(tmp_path / "run")["teacher_precision"] == "float32" and memories(tmp_path / "cache") == ["float32"]


def test_speed_in_bfloat16_is_measured_and_the_fastest_form_is_said(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inference, "bfloat16_gain", lambda device: 4.1)
    monkeypatch.setattr(measure, "too_busy", lambda *arguments: None)  # then no sentence claims a speed
    assert potstill(*patient(home), *LOUD, "--set", "timing=pytorch", "--out", tmp_path / "run") == 0
    found = measurements(tmp_path / "run")
    for model in found["models"].values():
        assert set(model["speed"]) == {"pytorch", "pytorch bfloat16"} and model["fastest"] in model["speed"]
    assert found["models"]["teacher"]["times_faster_at_best"] == 1
    assert processor.processor_name() in found["device"]
    said = capsys.readouterr().out
    assert f"fastest on {found['device']}: teacher by PyTorch" in said and said.split().count("faster") == 2
    alone = measure_models([str(home / "teacher/student")], str(home / "test.csv"))
    (model,) = alone["models"].values()
    assert processor.processor_name() in alone["device"]
    assert set(model["speed"]) == {"pytorch", "pytorch bfloat16"} and model["times_faster_at_best"] == 1
