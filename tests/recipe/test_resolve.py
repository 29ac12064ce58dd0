"""Recipes: what is written is what is run, where each value comes from, and what a wrong word is answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.recipe.flags import parse_test_files
from potstill.recipe.pace import with_pace
from potstill.recipe.resolve import grid_recipes, resolve, show
from potstill.recipe.schema import Data, Optimizer, Recipe, Stage, fingerprint, to_toml
from tests.support.plugin_folders import write_plugins

TEACHER_AND_DATA = 'teacher = "t"\n[data]\ntrain = "train.tsv"\n'


@pytest.fixture(autouse=True)
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_plugins(tmp_path / "plugged")
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    monkeypatch.setattr("potstill.recipe.defaults.METHODS", ("slow",))
    return tmp_path / "plugged"


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "soup.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


@pytest.fixture
def soup(write) -> Path:
    return write(
        'teacher = "t"\nstudent = "slice:3"\n[data]\ntrain = "train.tsv"\n'
        '[[stage]]\nmethod = { name = "slow", temperature = 2.0 }\nepochs = 3\n'
    )


def test_a_misspelt_word_is_told_without_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TEACHER_AND_DATA + "[[stage]]\nepoch = 1\noptimizer = { rat = 1 }\n")
    code = """import sys
from potstill import InputError, resolve
try:
    resolve("mine.toml")
except InputError as error:
    print("torch" in sys.modules, error)"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "False recipe: stage.0 has no 'epoch'; did you mean 'epochs'?",
        "recipe: stage.0.optimizer has no 'rat'; did you mean 'rate'?",
    ]


def test_every_default_is_filled_in_and_its_source_told(soup: Path):
    resolved = resolve(soup, {"seed": ("--seed", 7), "teacher": ("--teacher", None)}, ["method.layers=[3]"])
    stage = resolved.recipe.stage[0]
    assert stage.method == {
        "name": "slow",
        "temperature": 2.0,
        "layers": [3],
        "map": "skip",
        "limit": 1.0,
        "warm": False,
    }
    assert resolved.recipe.student == [{"build": "slice", "layers": 3, "width": None}]
    assert resolved.recipe.name == "soup" and resolved.recipe.teacher == "t"
    sources = resolved.sources
    assert sources["stage.0.method.temperature"] == sources["student.0.layers"] == sources["teacher"] == "soup.toml"
    assert sources["seed"] == "--seed"
    assert sources["stage.0.method.layers"] == "--set"
    assert sources["stage.0.method.map"] == sources["stage.0.batch"] == sources["length"] == "default"


@pytest.mark.parametrize("path", ["stage.0.method.temperature", "stage.method.temperature", "method.temperature"])
def test_the_only_stage_need_not_be_named(soup: Path, path: str):
    resolved = resolve(soup, {}, [f"{path}=9"])
    assert resolved.recipe.stage[0].method["temperature"] == 9.0
    assert resolved.sources["stage.0.method.temperature"] == "--set"


def test_sets_are_read_as_toml_values_and_bare_words(soup: Path):
    sets = [
        "optimizer.rate=1e-3",
        "dropout=0",
        "data.train=other.tsv",
        "baseline=false",
        "optimizer.clip=none",
        "student=slice:2+whole",
    ]
    recipe = resolve(soup, {}, [*sets, 'data.test.far="far.tsv"', 'data.labels=["a", "b"]']).recipe
    assert recipe.stage[0].optimizer == Optimizer(rate=1e-3, rates=[], clip=None)
    assert (recipe.dropout, recipe.baseline, recipe.data[0].train) == (0.0, False, "other.tsv")
    assert recipe.data[0].test == {"far": "far.tsv"} and recipe.data[0].labels == ["a", "b"]
    assert [one["build"] for one in recipe.student] == ["slice", "whole"] and recipe.student[0]["layers"] == 2


def test_the_last_word_wins_flags_before_sets(soup: Path):
    resolved = resolve(soup, {"stage.0.epochs": ("--epochs", 5)}, ["epochs=6", "epochs=7"])
    assert resolved.recipe.stage[0].epochs == 7.0 and resolved.sources["stage.0.epochs"] == "--set"


def test_another_method_drops_the_fields_of_the_first_and_the_same_method_keeps_them(soup: Path):
    assert resolve(soup, {"method": ("--method", "quick")}).recipe.stage[0].method == {"name": "quick"}
    assert resolve(soup, {"method": ("--method", "slow")}).recipe.stage[0].method["temperature"] == 2.0


def test_the_fields_of_a_method_without_a_name_belong_to_the_one_that_is_chosen(write):
    """So a method that may be chosen keeps them, and another one drops them."""
    path = write(TEACHER_AND_DATA + "[[stage]]\nmethod = { temperature = 2.0 }\n")
    assert resolve(path).recipe.stage[0].method == {"name": "auto", "temperature": 2.0}
    assert resolve(path, {"method": ("--method", "slow")}).recipe.stage[0].method["temperature"] == 2.0
    assert resolve(path, {"method": ("--method", "quick")}).recipe.stage[0].method == {"name": "quick"}
    with pytest.raises(InputError, match=r'method.slow.temperature = "hot": expected a number'):
        resolve(path, {}, ["method.temperature=hot"])
    with pytest.raises(InputError, match=r"student\.auto takes no fields"):
        resolve(None, {}, ["data.train=a.csv", 'student=[{build = "auto", layers = 3}]'])


def test_a_recipe_may_be_flags_alone():
    flags = {"teacher": ("--teacher", Path("t")), "data.train": ("--train", "a.tsv"), "data.test": ("--test", "b.tsv")}
    recipe = resolve(None, {**flags, "student": ("--student", "slice:1")}).recipe
    assert recipe.teacher == "t" and recipe.data == [Data(train="a.tsv", test={"test": "b.tsv"})]
    assert recipe.stage == with_pace(Recipe(data=recipe.data, stage=[Stage()])).stage and recipe.stage[0].method == {
        "name": "auto"
    }


def test_stages_and_makers_are_reached_by_index(write):
    path = write(TEACHER_AND_DATA + '[[stage]]\ndata = ["some:5"]\n[[stage]]\nreshape = "slice:1"\nmethod = "quick"\n')
    recipe = resolve(path, {}, ["stage.0.data.rows=6", "stage.1.reshape.0.layers=2", "stage.1.epochs=1"]).recipe
    assert recipe.stage[0].data == [{"make": "some", "rows": 6}]
    assert recipe.stage[1].reshape[0]["layers"] == 2 and recipe.stage[1].epochs == 1.0
    with pytest.raises(InputError, match=r"there are 2 stages: write stage.0.epochs"):
        resolve(path, {}, ["epochs=1"])


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["method.temprature=1"], "there is no 'method.temprature' in the recipe; did you mean 'method.temperature'?"),
        (["stage.0.epoch=1"], "did you mean 'stage.0.epochs'?"),
        (["sed=1"], "did you mean 'seed'?"),
        (["seed"], "--set seed: has no value; write --set seed=VALUE"),
        (["seed=1.5"], "recipe: seed = 1.5: expected a whole number at least 0"),
        (["epochs=0"], "recipe: stage.0.epochs = 0: expected a number more than 0"),
        (["name=../up"], 'recipe: name = "../up" names files'),
        (["keep=worst"], 'recipe: stage.0.keep = "worst": expected "best" or "last"'),
        (["optimizer.rates=1e-4"], "stage.0.optimizer.rates = 0.0001: expected a valid list"),
        (["optimizer.clip=-1"], 'expected a number more than 0, or "none"'),
        (["student=slcie:3"], "there is no student 'slcie'; did you mean 'slice'?"),
        (["student=whole:3"], "student.whole takes no value; write 'whole'"),
        (["method=3"], "expected a table"),
        (
            ['grid={"method.temperature"=[1, "x"]}'],
            'grid, at {"method.temperature": "x"}: method.slow.temperature = "x"',
        ),
        (['grid={"method.heat"=[1]}'], "there is no 'method.heat' in the recipe"),
        (["grid.seed=[]"], "recipe: grid.seed is empty"),
    ],
)
def test_wrong_sets_are_answered_with_what_to_write(soup: Path, sets: list[str], told: str):
    with pytest.raises(InputError) as error:
        resolve(soup, {}, sets)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("techer = 't'\n[data]\ntrain='x'", "recipe: has no 'techer'; did you mean 'teacher'?"),
        ("[data]\ntrain='x'\n[[stage]]\nepoch=1", "recipe: stage.0 has no 'epoch'; did you mean 'epochs'?"),
        (
            "[data]\ntrain='x'\n[[stage]]\noptimizer={rat=1}",
            "recipe: stage.0.optimizer has no 'rat'; did you mean 'rate'?",
        ),
        ("teacher='t'", "recipe: data.0.train is missing; write data.train = … (a text)"),
        ("[data]\ntrain='x'\ntest={\"../a\"='b'}", "names files"),
        ("[data]\ntrain='x'\n[[data]]\ntrain='y'", ":3: "),
        ("[[data]]\ntrain='x'\n[[data]]\ntrain='y'", "give each [[data]] its own name"),
        ("seed = 1\nteacher = t\n", "soup.toml:2: Invalid value"),
        ("teacher = 'x\n", "soup.toml:1: "),
        ("data = 3", "recipe: data = 3: expected a table"),
        ("stage = []\n[data]\ntrain='x'", "recipe: stage is empty"),
    ],
)
def test_wrong_files_are_answered_with_the_place_and_what_to_write(write, text: str, told: str):
    with pytest.raises(InputError) as error:
        resolve(write(text))
    assert told in str(error.value)


def test_files_that_are_not_there_or_not_text(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no file .*soap.toml"):
        resolve(tmp_path / "soap.toml")
    with pytest.raises(InputError, match=r"there is no recipe 'pkd-sst3'; did you mean 'pkd-sst2'\?"):
        resolve("pkd-sst3")
    (tmp_path / "latin.toml").write_bytes(b"seed = 1\nteacher = 'caf\xe9'")
    with pytest.raises(InputError, match=r"latin\.toml:2: is not UTF-8"):
        resolve(tmp_path / "latin.toml")


# ---- a run is a value


def test_a_grid_is_every_combination_and_each_cell_has_none(soup: Path):
    recipe = resolve(
        soup, {}, ['grid={"optimizer.rate"=[1e-5, 2e-5], "method.temperature"=[1, 2, 3], "student"=["slice:1"]}']
    ).recipe
    found = grid_recipes(recipe)
    assert len(found) == 6 and len({fingerprint(cell) for _, cell in found}) == 6
    chosen, last = found[-1]
    assert chosen == {"optimizer.rate": 2e-5, "method.temperature": 3, "student": "slice:1"}
    assert (last.stage[0].optimizer.rate, last.stage[0].method["temperature"], last.student[0]["layers"]) == (
        2e-5,
        3.0,
        1,
    )
    assert last.grid == {} and last.stage[0].epochs == 3.0
    assert grid_recipes(last) == [({}, last)]


def test_recipes_do_not_change(soup: Path):
    recipe = resolve(soup).recipe
    with pytest.raises(Exception, match="frozen"):
        recipe.seed = 3


def test_show_has_one_line_per_value_with_its_source(soup: Path):
    resolved = resolve(soup, {}, ["method.temperature=4"])
    lines = show(resolved).splitlines()
    assert len(lines) == len(resolved.sources)
    line = next(line for line in lines if line.startswith("stage.0.method.temperature"))
    assert line.split("#")[0].strip() == "stage.0.method.temperature = 4.0" and line.endswith("# --set")


def test_the_fingerprint_follows_what_decides_the_results_alone(soup: Path):
    plain = fingerprint(resolve(soup).recipe)
    for free in ("name=other", "tracker=tensorboard", "memory=m", "save_every=5", "force=true"):
        assert fingerprint(resolve(soup, {}, [free]).recipe) == plain
    for deciding in (
        "seed=1",
        "method.temperature=4",
        "teacher=u",
        "data.train=y.tsv",
        "optimizer.clip=none",
        "data.test=x.tsv",
        "student=slice:2",
    ):
        assert fingerprint(resolve(soup, {}, [deciding]).recipe) != plain


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
paths = words.filter(bool)  # an empty one is refused
anything = st.fixed_dictionaries(
    {
        "data": st.lists(
            st.builds(
                dict,
                train=paths,
                dev=st.none() | paths.filter(lambda word: word != "none"),
                test=st.dictionaries(st.sampled_from(["test", "m", "mm"]), paths),
                labels=st.none() | st.lists(words),
                class_weights=st.none() | st.just("balanced") | st.lists(st.floats(0.1, 9)),
            ),
            min_size=1,
            max_size=1,
        ),
        "student": st.sampled_from([[], "slice:3", "slice:2+whole", [{"build": "slice", "layers": 1, "width": 9}]]),
        "stage": st.lists(
            st.builds(
                dict,
                method=st.builds(
                    dict,
                    name=st.just("slow"),
                    limit=st.sampled_from([None, 1.0, 2.5]),
                    layers=st.lists(st.integers(0, 9)),
                ),
                optimizer=st.builds(dict, clip=st.none() | st.floats(0.01, 9), rate=st.floats(1e-9, 1)),
                patience=st.none() | st.integers(1, 9),
                data=st.sampled_from([[], "some", "some:3"]),
            ),
            min_size=1,
            max_size=3,
        ),
        "seed": st.integers(0, 2**63 - 1),
        "dropout": st.none() | st.floats(0, 0.99),
        "grid": st.dictionaries(
            st.sampled_from(["seed", "length"]), st.lists(st.integers(3, 9), min_size=1, max_size=2)
        ),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=anything)
def test_what_is_written_is_read_as_the_same_recipe(tree: dict, tmp_path: Path):
    recipe = with_pace(Recipe.model_validate({"name": "soup", **tree}))
    path = tmp_path / "again.toml"
    path.write_text(to_toml(recipe), encoding="utf-8", newline="")
    again = resolve(path).recipe
    assert again == recipe
    assert fingerprint(again) == fingerprint(recipe)


@pytest.mark.parametrize("name", ["dev", "train"])
def test_a_test_set_is_not_called_as_what_the_run_learns_from_or_chooses_by(name: str) -> None:
    given = parse_test_files([f"{name}=x.csv"])
    with pytest.raises(InputError, match=f"other_{name}=FILE"):
        resolve(None, flags={"data.0.train": ("--train", "t.csv"), "data.0.test": ("--test", given)})
    named = parse_test_files([f"one/x/{name}.csv", "one/x/test.csv"])
    assert named == {f"x-{name}": f"one/x/{name}.csv", "test": "one/x/test.csv"}
    assert parse_test_files([f"x/{name}.csv"]) == {"test": f"x/{name}.csv"}


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        (['data.train=""', "data.dev=dev.csv"], "train"),  # as of a variable of a shell that is not set
        (["data.train=a.csv", 'data.unlabelled=["more.txt", ""]'], "unlabelled"),
        (["data.train=a.csv", 'data.test=""'], "test"),
    ],
)
def test_a_source_of_rows_is_not_empty(sets: list[str], field: str) -> None:
    """An empty path would be the current folder, and without train the rows of dev say which form the texts have."""
    with pytest.raises(InputError, match=f"data.0.{field} is an empty text; write the path of a file"):
        resolve(None, None, ["teacher=t", *sets])
