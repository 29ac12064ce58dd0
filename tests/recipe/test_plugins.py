"""Methods, students and data makers are found by their file's name, and their fields are checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from potstill.errors import InputError
from potstill.recipe import plugins
from tests.support.plugin_folders import METHOD, write_plugins


@pytest.fixture(autouse=True)
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_plugins(tmp_path / "plugged")
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    return tmp_path / "plugged"


def test_names_are_file_names_built_in_and_plugged(plugged: Path):
    assert {"slow", "quick", "soft_targets", "patient"} <= set(plugins.names("methods"))
    assert not any(name.startswith("_") for name in plugins.names("methods"))


def test_listing_and_describing_every_plugin_needs_no_torch(plugged: Path):
    code = (
        "import sys, potstill.recipe.resolve, potstill.recipe.plugins as p; from potstill import api; "
        "[p.describe(kind, name) for kind in p.BASES for name in p.names(kind)]; "
        "print(*{'torch', 'transformers'} & set(sys.modules)); assert api.torch.zeros(1).sum() == 0"
    )
    environment = {"PYTHONPATH": str(Path(plugins.__file__).parent.parent.parent), "POTSTILL_PLUGINS": str(plugged)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "\n"), ran.stderr


def test_a_plugin_that_imports_torch_itself_is_found(plugged: Path):
    (plugged / "methods" / "heavy.py").write_text(METHOD.replace("from dataclasses", "import torch\nfrom dataclasses"))
    assert plugins.make("methods", "heavy", {}).temperature == 5.0


def test_listing_and_importing_recipes_needs_no_torch():
    code = "import sys, potstill.recipe.resolve, potstill.recipe.plugins as p; p.names('methods'); sys.exit('torch' in sys.modules)"
    source = str(Path(plugins.__file__).parent.parent.parent)
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0


def test_a_plugin_may_not_take_a_built_in_name(plugged: Path):
    (plugged / "methods" / "soft_targets.py").write_text(METHOD)
    with pytest.raises(InputError, match="'soft_targets' exists already; rename the file"):
        plugins.names("methods")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "exactly one public dataclass, has none"),
        (
            METHOD
            + METHOD.split('"""', 2)[2]
            .replace("class Slow", "class Quick")
            .replace("from __future__ import annotations", ""),
            "has Slow, Quick",
        ),
        ("import no_such_module_anywhere", "cannot be loaded: ModuleNotFoundError"),
        (
            METHOD.replace("(Method)", ""),
            "Slow is not a Method; write 'from potstill.api import Method' and 'class Slow",
        ),
        (METHOD.replace("Method", "Builder"), "Slow is not a Method; write"),
        (METHOD.replace("def losses", "def loss"), r"Slow has no losses; write 'def losses\(self, …\)'"),
    ],
)
def test_a_file_without_exactly_one_dataclass_is_refused(plugged: Path, text: str, told: str):
    (plugged / "methods" / "odd.py").write_text(text)
    with pytest.raises(InputError, match=told):
        plugins.find("methods", "odd")


def test_a_plugin_folder_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POTSTILL_PLUGINS", "/no/such/folder")
    with pytest.raises(InputError, match="POTSTILL_PLUGINS names /no/such/folder"):
        plugins.names("data")


def test_every_dataclass_is_found(plugged: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(plugins, "BUILT_IN", tmp_path / "nothing")
    classes = {name: plugins.find("methods", name).__name__ for name in plugins.names("methods")}
    assert classes == {"slow": "Slow", "quick": "Whole"}


def test_make_fills_in_and_converts_only_what_keeps_its_meaning():
    made = plugins.make("methods", "slow", {"temperature": 3, "layers": [4, 8], "limit": "none"})
    assert (made.temperature, made.layers, made.limit, made.map) == (3.0, (4, 8), None, "skip")
    assert isinstance(made.temperature, float)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temprature": 1}, "method.slow has no 'temprature'; did you mean 'temperature'?"),
        ({"temperature": "5"}, 'method.slow.temperature = "5": expected a number'),
        ({"temperature": True}, "method.slow.temperature = true: expected a number"),
        ({"layers": [1, 2.5]}, r"method.slow.layers = \[1, 2.5\]: expected a list \(of each: a whole number\)"),
        ({"map": "slip"}, 'method.slow.map = "slip": expected "skip" or "last"'),
        ({"warm": 1}, "method.slow.warm = 1: expected true or false"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_given_and_what_is_expected(fields: dict, told: str):
    with pytest.raises(InputError, match=told):
        plugins.make("methods", "slow", fields)


def test_a_field_without_default_is_needed():
    with pytest.raises(InputError, match=r"student.slice.layers is missing; write layers = … \(a whole number\)"):
        plugins.make("students", "slice", {})


def test_an_unknown_name_is_answered_with_the_nearest_and_all():
    with pytest.raises(InputError, match=r"there is no method 'sloow'; did you mean 'slow'\? There are: .*patient"):
        plugins.make("methods", "sloow", {})


def test_describe_tells_the_paper_and_each_field():
    line, fields = plugins.describe("methods", "slow")
    assert line == "Slow cooking (Cook, 1999)."
    assert fields[0] == ("temperature", "a number", "5.0")
    assert fields[3] == ("limit", 'a number, or "none"', "1.0")
    assert plugins.describe("students", "slice")[1][0] == ("layers", "a whole number", "needed")
