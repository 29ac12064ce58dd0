"""Every recipe that potstill ships can be run as it stands."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path

import pytest

from potstill.data.making import TeacherDataMaker
from potstill.data.rows import Columns, open_table
from potstill.recipe.resolve import RECIPES, grid_recipes, resolve, shipped
from potstill.recipe.schema import Recipe, to_toml
from potstill.runs.stage_setup import data_makers
from potstill.tasks.registry import TASKS

GRIDS = {"kd-sst2": 27, **{f"pkd-{task}": 108 for task in ("sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "race")}}
SHARED = Path(__file__).parents[3] / "shared"


@lru_cache
def resolved(name: str) -> Recipe:
    return resolve(name).recipe


def test_the_seven_columns_of_the_patient_paper_are_there():
    assert set(GRIDS) <= set(shipped())
    assert set(resolved("pkd-mnli").data[0].test) == {"m", "mm"}


@pytest.mark.parametrize("name", shipped())
def test_every_recipe_resolves_under_its_name_and_survives_being_written(name: str, tmp_path: Path):
    recipe = resolved(name)
    first = recipe.stage[0]
    teaches_nobody = first.method["name"] == "hard_labels" and not any(
        isinstance(maker, TeacherDataMaker) for maker in data_makers(first)
    )
    assert recipe.name == name and recipe.student
    assert all((recipe.teacher or data.teacher) is None for data in recipe.data) == teaches_nobody
    (tmp_path / "again.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert resolve(tmp_path / "again.toml").recipe == recipe


@pytest.mark.parametrize("name", shipped())
def test_every_recipe_opens_with_its_paper_and_its_commands(name: str):
    lines = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    top = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    assert "arXiv:" in "".join(top)
    assert any(line.startswith(f"#   potstill distill {name}") for line in top)


@pytest.mark.parametrize("name", shipped())
def test_every_grid_has_the_papers_number_of_runs(name: str):
    found = grid_recipes(resolved(name))
    assert len(found) == GRIDS.get(name, 1)
    assert len({str(cell) for _, cell in found}) == len(found)


@pytest.mark.parametrize("name", [name for name in GRIDS if name.startswith("pkd-")])
def test_patient_recipes_carry_the_papers_settings(name: str):
    recipe = resolved(name)
    stage = recipe.stage[0]
    length = 512 if name == "pkd-race" else 128
    assert (stage.batch, stage.epochs, recipe.length, recipe.student[0]["layers"]) == (32, 4.0, length, 6)
    assert stage.method["scale"] == "mean" and stage.method["map"] == "skip"
    assert recipe.grid == {
        "optimizer.rate": [5e-5, 2e-5, 1e-5],
        "method.temperature": [5.0, 10.0, 20.0],
        "method.alpha": [0.2, 0.5, 0.7],
        "method.beta": [10.0, 100.0, 500.0, 1000.0],
    }


@pytest.mark.parametrize("name", [name for name in shipped() if resolved(name).data[0].train.startswith("../shared")])
def test_local_recipes_name_files_and_columns_that_exist(name: str):
    if not SHARED.is_dir():
        pytest.skip("needs ../shared beside the project")
    for data in resolved(name).data:
        assert data.dev or "/mnist/" in str(
            data.train
        )  # whose train file alone is published, and a tenth of it held out
        has_labels = data.task is None or not TASKS[data.task].own_targets
        for split in [data.train, *([data.dev] if data.dev else []), *data.test.values()]:
            label = tuple(data.label) if isinstance(data.label, list) else data.label
            columns, form = Columns(data.text, data.pair, label), TASKS[data.task].form if data.task else None
            table = open_table(Path(__file__).parents[2] / split, columns, has_labels, form)
            row = next(table.rows())
            assert row.label is not None or not has_labels


@pytest.mark.parametrize("name", shipped())
def test_the_commands_on_top_are_ones_that_the_command_line_takes(name: str):
    import typer

    from potstill.app.cli import app

    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").replace("\\\n#", " ")
    commands = [shlex.split(line[1:], comments=True) for line in text.splitlines() if line.startswith("#   potstill ")]
    assert commands
    for _, word, *arguments in commands:
        command = typer.main.get_command(app).commands[word]  # type: ignore[attr-defined]
        context = command.make_context(word, arguments)
        if word == "distill":
            assert resolve(context.params["recipe"], {}, context.params["set_"] or ()).recipe.name == name
