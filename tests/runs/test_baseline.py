"""The baseline is trained as long as the student, is told apart by its whole network, and says what it begins from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from accelerate import Accelerator

from potstill.measuring.measurements import Measurements
from potstill.models.student import save_student
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe, Round
from potstill.reporting.console import baseline_starts
from potstill.runs import baseline
from potstill.runs.prepare import DataSets
from potstill.runs.stage_cache import stage_key
from potstill.runs.stage_setup import Run, first_student, make_training, repeated, stage_examples
from potstill.system.display import Display
from tests.support.prepared import prepared_sets
from tests.support.small_models import sentences, small_model, write_csv

QUIET = Display(quiet=True)


def prepared(folder: Path, *sets: str) -> tuple[Recipe, DataSets]:
    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(90, 0)]
    write_csv(folder / "train.csv", rows[:60])
    write_csv(folder / "dev.csv", rows[60:])
    if not (folder / "teacher").exists():
        save_student(small_model("bert"), folder / "teacher")
    files = [f"data.train={folder}/train.csv", f"data.dev={folder}/dev.csv", f"teacher={folder}/teacher", "force=true"]
    recipe = resolve(None, None, [*files, "student=keep_layers:2", "batch=8", *sets]).recipe
    return recipe, prepared_sets(recipe)


def alone_of(recipe: Recipe, data: DataSets, *rows: int) -> list[Round]:
    """The baseline's rounds, if the student read so many rows in each of its own."""
    found = baseline.baseline_recipe(recipe, recipe, data, rows)
    assert found is not None
    return found.rounds


def test_it_has_as_many_steps_as_the_student_of_many_copies(tmp_path: Path) -> None:
    """Unlabelled texts and copies without labels: epochs, the times that dev is scored, and steps are the student's."""
    (tmp_path / "more.txt").write_text("".join(f"{text}\n" for text, _ in sentences(333, 5)))
    recipe, data = prepared(tmp_path, f"data.unlabelled={tmp_path}/more.txt", "epochs=3")
    (round_,) = recipe.rounds
    rows = len(stage_examples(round_, data.last[0], True, 0))
    assert rows > 300
    (alone,) = alone_of(recipe, data, rows)
    read = len(stage_examples(alone, data.last[0], False, 0))
    assert read == rows and alone.stage.steps(read) == round_.stage.steps(rows)
    examples = repeated(data.last[0].train.labelled_only, 5.4)
    counts = {row: list(examples.index).count(row) for row in data.last[0].train.labelled_only.index}
    assert len(examples) == 324 and set(counts.values()) == {5, 6}


def test_two_stages_are_read_as_one_of_all_their_steps(tmp_path: Path) -> None:
    stage = {"method": {"name": "soft_targets"}, "optimizer": {"rate": 1e-3}}
    recipe, data = prepared(tmp_path)
    both = [{**stage, "data": "sample:30", "epochs": 2.0}, {**stage, "epochs": 1.0}]
    recipe = Recipe.model_validate({**recipe.model_dump(exclude={"stage"}), "stage": both})
    (alone,) = alone_of(recipe, data, 30, 60)
    assert alone.stage.epochs == 3.0
    assert len(stage_examples(alone, data.last[0], False, 0)) == 40  # 2 · 30 + 1 · 60 in three epochs


def test_without_further_rows_nothing_is_repeated(tmp_path: Path) -> None:
    recipe, data = prepared(tmp_path, "epochs=4")
    (alone,) = alone_of(recipe, data, 60)
    assert alone.stage.reads == 1.0 and alone.stage.epochs == recipe.stage[0].epochs


def test_it_has_as_many_steps_as_a_student_with_a_least_number_of_them(tmp_path: Path) -> None:
    recipe, data = prepared(tmp_path, "epochs=4", "min_steps=100")
    (round_,), (alone,) = recipe.rounds, alone_of(recipe, data, 60)
    assert alone.stage.steps(60) == round_.stage.steps(60) == (8, 100)


def key_of(recipe: Recipe, data: DataSets, folder: Path) -> str:
    """Under which the cache holds the result of the baseline."""
    found = baseline.baseline_recipe(recipe, recipe, data, (60,))
    assert found is not None
    run, (round_,) = Run(found, data, folder, Accelerator(cpu=True), QUIET), found.rounds
    student = first_student(run)
    return stage_key(found, round_, make_training(run, round_, student), student, data.last)


def test_the_cached_one_is_that_of_the_same_network_not_of_the_same_weights(tmp_path: Path) -> None:
    """Another activation or dropout in the teacher's config.json makes another student of the same weights."""
    keys = []
    for changed in ({}, {}, {"hidden_act": "relu"}, {"hidden_dropout_prob": 0.0}):
        recipe, data = prepared(tmp_path)
        config = tmp_path / "teacher/config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **changed}))
        recipe, data = prepared(tmp_path)
        keys.append(key_of(recipe, data, tmp_path / "run"))
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_it_is_trained_once_for_all_methods_and_teachers_answers(tmp_path: Path) -> None:
    """What the student learns from beside the labels changes nothing in its baseline."""
    methods = ("soft_targets", "patient", "hints")
    keys = [key_of(*prepared(tmp_path, f"method={name}"), tmp_path / name) for name in methods]
    assert len(set(keys)) == 1
    assert key_of(*prepared(tmp_path, "method=patient", "seed=1"), tmp_path / "seed") != keys[0]


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (("student=keep_layers:2",), "the weights of its teacher"),
        (("student=keep_layers:2", "start=pre/trained"), "the weights of pre/trained"),
        (("student=bilstm",), "random weights"),
        (("student=fresh:2+trim_vocabulary", "start=pre/trained"), "random weights"),
    ],
)
def test_it_says_what_it_began_from(sets: tuple[str, ...], told: str) -> None:
    recipe = resolve(None, None, ["teacher=t", "data.train=a.csv", *sets]).recipe
    assert baseline.initial_weights(recipe) == told
    found = {"models": {"teacher": {}, "fine-tuned": {"begun_from": told}}}
    assert baseline_starts(Measurements.from_json(found)) == [
        f"fine-tuned: trained on labels alone, started from {told}"
    ]
