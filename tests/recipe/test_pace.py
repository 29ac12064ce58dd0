"""Rates and epochs that nobody chose follow from the student; what the user writes wins."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potstill.recipe import plugins
from potstill.recipe.pace import FINE_TUNING, FROM_RANDOM_WEIGHTS, with_pace
from potstill.recipe.resolve import grid_recipes, resolve, shipped, show
from potstill.recipe.schema import MOST_SCORES, Recipe, Stage, fingerprint, to_toml
from potstill.runs.distill import finetune

SETS = ("teacher=t", "data.train=a.csv")


def chosen(*sets: str) -> tuple[float | None, float | None]:
    (stage,) = resolve(None, None, [*SETS, *sets]).recipe.stage
    return stage.optimizer.rate, stage.epochs


def test_rates_are_tried_and_steps_are_added_where_the_user_says_nothing() -> None:
    (stage,) = resolve(None, None, [*SETS, "student=keep_layers:3"]).recipe.stage
    assert stage.optimizer.rates == [1e-4, 2e-4, 4e-4, 8e-4] and stage.min_steps == 1500
    (stage,) = resolve(None, None, [*SETS, "student=keep_layers:3", "optimizer.rate=1e-4", "epochs=2"]).recipe.stage
    assert stage.optimizer.rates == [] and stage.min_steps == 0
    (stage,) = resolve(None, None, [*SETS, "student=bag", "optimizer.rates=[1e-4, 1e-3]", "min_steps=7"]).recipe.stage
    assert stage.optimizer.rates == [1e-4, 1e-3] and stage.min_steps == 7
    (stage,) = resolve(None, None, [*SETS, "student=bag", "optimizer.name=adadelta"]).recipe.stage
    assert stage.optimizer.rates == []


@given(st.integers(1, 10**6), st.integers(1, 512), st.floats(0.01, 1000), st.integers(0, 10**5))
def test_a_stage_has_at_least_its_steps_and_dev_is_scored_a_bounded_number_of_times(
    rows: int, batch: int, epochs: float, least: int
) -> None:
    stage = Stage(batch=batch, epochs=epochs, min_steps=least)
    per_epoch, steps = stage.steps(rows)
    assert per_epoch == -(-rows // batch)
    assert max(least, math.floor(epochs * per_epoch)) <= steps <= max(least, math.ceil(epochs * per_epoch)) + 1
    every = stage.score_every(rows)
    assert every % per_epoch == 0 and -(-steps // every) <= MOST_SCORES
    assert every == per_epoch or steps > MOST_SCORES * per_epoch


@pytest.mark.parametrize("student", ["bag", "bilstm", "fresh", "mlp", "cnn", "marian", "lstm_translator"])
def test_a_student_with_random_weights_brings_its_rate_and_epochs(student: str) -> None:
    rate, epochs = chosen(f"student={student}")
    assert rate is not None and epochs is not None
    assert rate >= 10 * FINE_TUNING.rate and epochs >= FROM_RANDOM_WEIGHTS.epochs
    assert chosen(f"student={student}", "optimizer.rate=3e-5") == (3e-5, epochs)
    assert chosen(f"student={student}", "epochs=2") == (rate, 2.0)
    assert chosen(f"student={student}", "optimizer.rate=auto", "epochs=auto") == (rate, epochs)


def test_every_builder_that_draws_weights_has_a_pace() -> None:
    """What makes a network anew has a folder of its own name here; the others keep weights."""
    keeps = {"keep_layers", "trim_vocabulary"}
    assert {name for name in plugins.names("students") if not hasattr(plugins.find("students", name), "pace")} <= keeps


@pytest.mark.parametrize(
    ("layers", "rate"),
    [("1", 6e-4), ("3", 2e-4), ("6", 1e-4), ("12", 5e-5), ("24", 5e-5), ("last:3", 2e-4), ("every:2", 1e-4), ("skip:4", 1.5e-4)],
)  # fmt: skip
def test_the_fewer_layers_are_kept_the_higher_the_rate(layers: str, rate: float) -> None:
    assert chosen(f"student=keep_layers:{layers}") == (pytest.approx(rate), 4.0)
    assert chosen(f"student=keep_layers:{layers}+trim_vocabulary") == (pytest.approx(rate), 4.0)


def test_without_a_builder_it_is_fine_tuned() -> None:
    assert chosen("student=[]") == FINE_TUNING[:2]
    assert chosen("student=[]", "optimizer.name=adadelta") == (1.0, 4.0)


def test_the_pace_waits_for_a_student_that_is_still_to_be_chosen() -> None:
    assert chosen() == (None, None)


def test_the_resolved_values_are_shown_written_and_in_the_fingerprint() -> None:
    resolved = resolve(None, None, [*SETS, "student=bag"])
    told = {line.split(" = ")[0]: line for line in show(resolved).splitlines()}
    for field, value in (("optimizer.rate", "0.001"), ("epochs", "10.0")):
        line = told[f"stage.0.{field}"]
        assert line.split(" = ")[1].startswith(value) and line.endswith("# student")
    assert "rate = 0.001" in to_toml(resolved.recipe) and "epochs = 10.0" in to_toml(resolved.recipe)
    searched = ["optimizer.rates=[5e-4, 1e-3, 2e-3, 4e-3]", "min_steps=3000"]
    same = resolve(None, None, [*SETS, "student=bag", "optimizer.rate=1e-3", "epochs=10", *searched])
    assert fingerprint(same.recipe) == fingerprint(resolved.recipe)
    assert resolve(None, None, [*SETS, "optimizer.rate=1e-3"]).sources["stage.0.optimizer.rate"] == "--set"


def test_each_student_of_a_grid_has_its_own() -> None:
    recipe = resolve(None, None, [*SETS, 'grid={student = ["bag", "keep_layers:3"]}']).recipe
    assert [cell.stage[0].optimizer.rate for _, cell in grid_recipes(recipe)] == [1e-3, pytest.approx(2e-4)]
    assert with_pace(recipe) == recipe


def test_each_optimizer_of_a_grid_has_its_own_rate() -> None:
    grid = 'grid={"optimizer.name" = ["adamw", "adadelta"]}'
    recipe = resolve(None, None, [*SETS, "student=keep_layers:3", grid]).recipe
    adamw, adadelta = (cell.stage[0].optimizer for _, cell in grid_recipes(recipe))
    assert adamw.rate == pytest.approx(2e-4) and len(adamw.rates or []) == 4
    assert (adadelta.rate, adadelta.rates) == (1.0, [])


def test_a_recipe_made_in_python_is_completed_and_a_stage_that_builds_anew_has_the_new_rate() -> None:
    made = Recipe.model_validate(
        {"data": {"train": "a.csv"}, "student": "keep_layers:3", "stage": [{}, {"reshape": "fresh:2"}]}
    )
    rates = [stage.optimizer.rate for stage in with_pace(made).stage]
    assert rates == [pytest.approx(2e-4), 5e-4]


def test_a_model_that_is_fine_tuned_as_it_is_has_the_rate_of_fine_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever student the recipe has for later."""
    seen: list[Recipe] = []
    monkeypatch.setattr("potstill.runs.distill.distill", lambda recipe, *_: seen.append(with_pace(recipe)) or {})
    finetune("model", Recipe.model_validate({"data": {"train": "a.csv"}, "student": "bag"}), tmp_path)
    assert (seen[0].stage[0].optimizer.rate, seen[0].stage[0].epochs) == FINE_TUNING[:2]


@pytest.mark.parametrize("name", shipped())
def test_a_published_recipe_says_its_rate_itself(name: str) -> None:
    sources = resolve(name).sources
    assert not [leaf for leaf, source in sources.items() if source == "student" and not leaf.startswith("data.")]


@pytest.mark.parametrize("grid", [False, True])
def test_a_rate_and_epochs_that_are_given_later_take_the_place_of_what_follows_from_the_student(
    tmp_path: Path, grid: bool
) -> None:
    """Of a recipe beside a result, in which everything is written, and of a grid over epochs."""
    written = resolve(None, None, [*SETS, "student=keep_layers:3"]).recipe
    (tmp_path / "recipe.toml").write_text(to_toml(written))
    if grid:
        recipe = resolve(
            None, None, [*SETS, "student=keep_layers:3", 'grid={epochs=[1, 2], "optimizer.rate"=[1e-4]}']
        ).recipe
        stages = [cell.stage[0] for _, cell in grid_recipes(recipe)]
    else:
        stages = resolve(tmp_path / "recipe.toml", None, ["optimizer.rate=1e-4", "epochs=1"]).recipe.stage
    for stage in stages:
        assert (stage.optimizer.rate, stage.optimizer.rates, stage.min_steps) == (1e-4, [], 0)
    both = resolve(None, None, [*SETS, "student=bag", "min_steps=7", "epochs=1"]).recipe.stage[0]
    assert both.min_steps == 7
    assert resolve(tmp_path / "recipe.toml", None, ["batch=8"]).recipe.stage[0].min_steps == 1500


def test_one_rate_to_try_is_the_rate() -> None:
    assert chosen("student=keep_layers:3", "optimizer.rates=[3e-4]")[0] == 3e-4


def test_a_stage_has_a_step() -> None:
    assert Stage(epochs=1e-9).steps(100) == (4, 1) and Stage(epochs=1e-9).score_every(100) == 4
