"""Numbers are learned whatever their unit, and the saved student answers in it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from potstill.data.batches import TargetScale
from potstill.errors import InputError
from potstill.inference import answers as measure
from potstill.measuring import quality
from potstill.measuring.measurements import Measurements
from potstill.models.student import Student, load_student, save_student
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.reporting.console import constants
from potstill.runs.build import build
from potstill.runs.data_set import selection_metric
from potstill.runs.prepare import DataSets
from potstill.runs.stage_setup import Run, make_training
from potstill.runs.stages import train_student
from potstill.system.display import Display
from potstill.tasks.regress import Regression
from potstill.training import checkpoints
from potstill.training.loop import train
from potstill.training.setup import Training
from potstill.training.target_scale import output_layer, scale_outputs, unscale_outputs, unscaled_outputs
from tests.support.prepared import prepared_sets
from tests.support.small_models import ARCHITECTURES, sentences, small_model, write_csv

QUIET = Display(quiet=True)
UNITS = {"as it is": (0.0, 1.0), "shifted": (100.0, 1.0), "shifted and scaled": (100.0, 1000.0)}


def made(folder: Path, shift: float, scale: float, *sets: str) -> tuple[Recipe, DataSets]:
    """Sentences with the number of good words less that of bad ones, and some noise, in another unit."""
    folder.mkdir()
    noise = np.random.default_rng(0).normal(0, 0.2, 200)
    rows = [
        (text, shift + scale * (label - 0.5 + more))
        for (text, label), more in zip(sentences(200, 3), noise, strict=True)
    ]
    write_csv(folder / "train.csv", [(text, f"{number:.6f}") for text, number in rows[:140]])
    write_csv(folder / "dev.csv", [(text, f"{number:.6f}") for text, number in rows[140:]])
    files = [
        f"data.train={folder}/train.csv",
        f"data.dev={folder}/dev.csv",
        "data.task=regress",
        "dropout=0.0",
        "student=[]",
    ]
    recipe = resolve(None, None, [*files, "optimizer.rate=4e-3", "epochs=8", "batch=16", *sets]).recipe
    return recipe, prepared_sets(recipe)


def learned(folder: Path, shift: float, scale: float, *sets: str) -> dict[str, float]:
    """What a student of these rows scores on dev, read again from its folder."""
    recipe, data = made(folder, shift, scale, *sets)
    trained = train_student(Run(recipe, data, folder / "run", Accelerator(cpu=True), QUIET))
    save_student(Student(trained.models[0], trained.tokenizer), folder / "student")
    again = load_student(folder / "student")
    said = measure.model_answers(again, data.last[0].for_scoring(data.last[0].dev, again.tokenizer))
    scores = quality.quality(data.last[0].task, data.last[0].dev, said)
    assert scores["pearson"] == pytest.approx(trained.dev, abs=1e-4)
    return scores


@pytest.mark.parametrize("student", ["keep_layers:1", "bag"])
def test_the_unit_of_the_numbers_changes_nothing_but_the_unit(tmp_path: Path, student: str) -> None:
    """The same correlation, and an error in the new unit that beats always saying the mean."""
    save_student(small_model("bert"), tmp_path / "start")  # with a head of two classes: a new one is drawn
    sets = (f"start={tmp_path}/start", "method=hard_labels", f"student={student}")
    found = {name: learned(tmp_path / name, *unit, *sets) for name, unit in UNITS.items()}
    plain = found["as it is"]
    assert plain["pearson"] > 0.5 and plain["rmse"] < 0.9 * plain["rmse_constant"]
    for name, (_, scale) in UNITS.items():
        assert found[name]["pearson"] == pytest.approx(plain["pearson"], abs=0.01), name
        assert found[name]["rmse"] == pytest.approx(scale * plain["rmse"], rel=0.03), name
        assert found[name]["rmse_constant"] == pytest.approx(scale * plain["rmse_constant"], rel=1e-3)


def test_a_students_head_taken_from_its_teacher_goes_on_from_there(tmp_path: Path) -> None:
    """Also a teacher's numbers are in the unit of the rows: the student that is all of it has learned all before its first step."""
    recipe, data = made(tmp_path / "rows", 100.0, 1000.0, f"start={_saved(tmp_path)}", "method=hard_labels")
    trained = train_student(Run(recipe, data, tmp_path / "run", Accelerator(cpu=True), QUIET))
    save_student(Student(trained.models[0], trained.tokenizer), tmp_path / "teacher")
    sets = (
        f"teacher={tmp_path}/teacher",
        "method=soft_targets",
        "method.alpha=1.0",
        "optimizer.rate=1e-9",
        "epochs=1",
        "force=true",
    )
    again, rows = made(tmp_path / "again", 100.0, 1000.0, *sets)
    found = train_student(Run(again, rows, tmp_path / "run2", Accelerator(cpu=True), QUIET))
    assert found.dev == pytest.approx(trained.dev, abs=1e-3)
    with (tmp_path / "run2/stages/0/steps.csv").open() as log:
        assert max(float(step["soft"]) for step in csv.DictReader(log)) < 1e-4


def _saved(folder: Path) -> Path:
    save_student(small_model("bert"), folder / "start")
    return folder / "start"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_factors_lie_in_the_last_layer(architecture: str) -> None:
    student, scale = small_model(architecture, labels=("value",)), TargetScale(100.0, 7.0)
    inputs = dict(student.tokenizer(["a good film", "dull"], padding=True, return_tensors="pt"))
    with torch.no_grad():
        before = student.model(**inputs).logits
        bits = [parameter.clone() for parameter in student.model.parameters()]
        with unscaled_outputs([student.model], [scale]):
            torch.testing.assert_close(student.model(**inputs).logits, 7.0 * before + 100.0)
        assert all(torch.equal(a, b) for a, b in zip(bits, student.model.parameters(), strict=True))
        unscale_outputs(student.model, scale)
        scale_outputs(student.model, scale)
        torch.testing.assert_close(student.model(**inputs).logits, before, rtol=1e-4, atol=1e-4)
    assert output_layer(student.model) is not None


def test_the_error_is_shown_beside_what_the_mean_is_worth() -> None:
    task = Regression()
    gold = np.array([1.0, 2.0, 3.0, 6.0])
    scores = task.score(gold, (gold + 1.0)[:, None])
    assert scores["rmse"] == 1.0 and scores["rmse_constant"] == pytest.approx(gold.std())
    assert next(iter(scores)) == "pearson" and scores["pearson"] == pytest.approx(1.0)
    found = {"models": {"distilled": {"quality": {"task": {"test": scores}}}}}
    assert constants(Measurements.from_json(found)) == ["test: predicting the mean has an RMSE of 1.87"]


def test_dev_is_not_chosen_by_an_error(tmp_path: Path) -> None:
    recipe, data = made(tmp_path / "rows", 0.0, 1.0, f"start={_saved(tmp_path)}", "metric=rmse")
    with pytest.raises(InputError, match="write metric = 'pearson'"):
        selection_metric(recipe, data.last[0])


def test_a_stopped_run_goes_on_to_the_same_bits_in_its_own_unit(tmp_path: Path) -> None:
    """Checkpoints hold the scaled weights: nothing is converted back and forth."""

    _saved(tmp_path)
    recipe, data = made(tmp_path / "rows", 100.0, 7.0, f"start={tmp_path}/start", "method=hard_labels", "epochs=2")

    def training(name: str) -> Training:
        run = Run(recipe, data, tmp_path / name, Accelerator(cpu=True), QUIET)
        return replace(make_training(run, recipe.rounds[0], build(recipe, data.last)), save_every=1)

    whole, first, second = (training(name) for name in ("whole", "stopped", "stopped"))
    every = list(train(whole))
    running = train(first)
    for _ in range(6):
        next(running)
    running.close()
    resume = checkpoints.newest(first.folder / "checkpoints")
    assert resume is not None and resume.step == 5 and len(list(train(second, resume))) == len(every) - 5
    theirs = second.models[0].state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in whole.models[0].state_dict().items())
