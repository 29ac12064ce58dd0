"""`potstill.api` is all that a plug-in imports: its names exist, and what type checkers read is what is loaded."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

from potstill import api
from potstill.recipe import plugins

MODULES = {name: module for name, module in vars(api).items() if isinstance(module, api._LazyModule)}


def checked_names() -> dict[str, str]:
    """The modules that type checkers see in api.py, by name."""
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    names = {}
    for node in branch.body:
        assert isinstance(node, ast.Import | ast.ImportFrom)
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names |= {one.asname or one.name: f"{package}{one.name}" for one in node.names}
    return names


def test_modules_are_the_same_for_type_checkers_and_at_run_time() -> None:
    assert {name: module.__name__ for name, module in MODULES.items()} == checked_names()


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_loaded(name: str) -> None:
    assert isinstance(importlib.import_module(MODULES[name].__name__), types.ModuleType)


def test_plugins_use_every_name() -> None:
    """The API holds what the built-in plug-ins need, and nothing else."""
    files = [file for file in plugins.BUILT_IN.rglob("*.py") if file.parent != plugins.BUILT_IN]
    used = {
        name.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "potstill.api"
        for name in node.names
    }
    own = {"TYPE_CHECKING", "Any", "annotations"}
    own |= {name for name, value in vars(api).items() if type(value) is types.ModuleType}
    assert {name for name in vars(api) if not name.startswith("_")} - own == used


def test_every_base_is_in_the_api() -> None:
    for kind, base in plugins.BASES.items():
        assert getattr(api, base).plugin_kind == kind


@pytest.mark.parametrize("file", sorted((plugins.BUILT_IN / "methods").glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_a_method_is_one_short_file(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 100


def test_commands_that_only_read_recipes_load_neither_torch_nor_transformers() -> None:
    """One after the other in one process: what the first ones have not loaded, they have not loaded for the others."""
    commands = [["list", kind] for kind in plugins.BASES]
    commands += [["show", "kd-sst2"], ["show", "kd-sst2", "--set", "method.temprature=3"]]
    code = (
        f"import sys\nfrom potstill.app.cli import main\nfor words in {commands}:\n"
        "    sys.argv = ['potstill', *words]\n    try: main()\n    except SystemExit: pass\n"
        "    print('loaded:', *{'torch', 'transformers'} & set(sys.modules))"
    )
    environment = {"PYTHONPATH": str(Path(api.__file__).parent.parent), "HOME": "/nonexistent"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    told = [line for line in ran.stdout.splitlines() if line.startswith("loaded:")]
    assert told == ["loaded:"] * len(commands), ran.stderr
