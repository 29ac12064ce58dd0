from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from potstill.models import student as students
from tests.support.commands import FAST, patient, potstill


def non_finite_numbers(folder: Path) -> list[str]:
    """Where any file of a run holds one."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            found += [f"{path} {name}" for name, one in load_file(path).items() if not torch.isfinite(one).all()]
        elif path.suffix == ".json":
            json.loads(path.read_text(), parse_constant=lambda word: found.append(f"{path} {word}"))  # noqa: B023
        elif path.suffix == ".csv":
            cells = (cell for row in csv.reader(path.open()) for cell in row)
            found += [f"{path} {cell}" for cell in cells if cell.lower().strip("-") in ("nan", "inf", "infinity")]
    return found


@pytest.mark.parametrize(
    ("rate", "step"),
    [("1e30", 2), ("1e39", 1), ("1e39", 2)],
    ids=["the loss of step 2", "weights after step 1, saved at once", "weights after step 1, saved later"],
)
def test_06_a_loss_that_is_no_number_ends_the_run_within_a_step(
    rate: str,
    step: int,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    figure: Callable[..., None],
) -> None:
    each = 1 if step == 1 else 1000
    more = ["--quiet", "--set", f"optimizer.rate={rate}", "--set", "optimizer.warmup=0.0"]
    more += ["--set", f"save_every={each}", "--set", "optimizer.weight_decay=0.0"]
    assert potstill(*patient(home), *more, "--out", tmp_path / "run") == 1
    told = capsys.readouterr().err
    assert f"step {step}: " in told and "Traceback" not in told and "optimizer.rate" in told
    assert len((tmp_path / "run/stages/0/steps.csv").read_text().splitlines()) == 2  # the header and step 1
    assert non_finite_numbers(tmp_path / "run") == []
    figure(6, "exit 1 within one step, the step named, 0 such numbers in any file")


def test_06_weights_that_are_no_numbers_are_refused_before_training(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    students.save_student(students.load_student(home / "teacher/student"), tmp_path / "teacher")
    weights = load_file(tmp_path / "teacher/model.safetensors")
    weights["classifier.weight"][0, 0] = math.nan
    save_file(weights, tmp_path / "teacher/model.safetensors", metadata={"format": "pt"})
    words = [*patient(home), "--teacher", tmp_path / "teacher", "--out", tmp_path / "run", *FAST]
    assert potstill(*words) == 2
    assert "classifier.weight" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
