"""What the pages say is true of the package: links, fields, recipes, commands and code."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from potstill.app.cli import app
from potstill.recipe import plugins
from potstill.recipe.explain import as_toml
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Data, Optimizer, Recipe, Stage

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if page.exists()]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PLUG_IN = re.compile(r"# ((methods|students|data)/(\w+)\.py)\n")  # the first line of an example that is a plug-in
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> list[Any]:
    """Every fenced block of a language, with its page and place for the test's name."""
    return [
        pytest.param(text, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, (kind, text) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


def commands(block: str) -> Iterator[list[str]]:
    """The words of each call of potstill, without variables before it and pipes around it."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        call: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;()<>"):
                if call and call[0] == "potstill":
                    yield call
                call = []
            elif call or not re.match(r"\w+=", word):
                call.append(word)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-ins that the pages show, saved where they say."""
    for page in PAGES:
        for _, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if found := PLUG_IN.match(text):
                file = tmp_path / "plugged" / found[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in (link for link in links if not re.match(r"\w+:", link)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("kind", ["methods", "students", "data"])
def test_every_method_student_and_data_maker_has_a_page_and_every_page_a_thing(kind: plugins.Kind) -> None:
    built_in = {file.stem for file in (plugins.BUILT_IN / kind).glob("[!_]*.py")}
    assert {page.stem for page in (ROOT / "docs" / kind).glob("*.md")} == built_in


@pytest.mark.parametrize(
    "page",
    [page for kind in ("methods", "students", "data") for page in PAGES if page.parent == ROOT / "docs" / kind],
    ids=name_of,
)
def test_every_page_of_a_thing_names_its_fields_with_their_defaults(page: Path) -> None:
    kind: Any = page.parent.name
    text = page.read_text(encoding="utf-8")
    values = plugins.defaults(kind, page.stem)
    for field in plugins.annotations_of(kind, page.stem):
        row = re.search(rf"^\| `{field}` \| ([^|]*) \|", text, re.MULTILINE)
        assert row, f"{name_of(page)} has no row for '{field}'"
        assert row[1].strip("`").split(":")[0] == as_toml(values[field])


@pytest.mark.parametrize("model", [Recipe, Data, Stage, Optimizer])
def test_the_page_of_the_recipe_names_every_field(model: type[Recipe | Data | Stage | Optimizer]) -> None:
    heading = {Recipe: "the recipe", Data: "`[data]`", Stage: "`[[stage]]`", Optimizer: "`optimizer`"}[model]
    text = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    section = text.partition(f"## Fields of {heading}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(model.model_fields)


@pytest.mark.parametrize("block", [one for one in blocks("toml") if "[data]" in one.values[0]])
def test_every_recipe_resolves(block: str, tmp_path: Path, plugged: None) -> None:
    (tmp_path / "recipe.toml").write_text(block, encoding="utf-8")
    assert resolve(tmp_path / "recipe.toml").recipe.data[0].train


@pytest.mark.parametrize("block", [one for one in blocks("sh") if "potstill " in one.values[0]])
def test_every_command_is_one_that_the_command_line_takes(block: str) -> None:
    found = list(commands(block))
    assert found, "no command was recognised"
    for _, word, *arguments in found:
        if word.startswith("-"):
            assert word in ("--version", "--help")
            continue
        known = {name for parameter in COMMANDS[word].params for name in parameter.opts} | {"--help"}
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
        assert given <= known, f"potstill {word} has no {', '.join(given - known)}"
        if "--help" not in given:
            assert COMMANDS[word].make_context(word, arguments).params


@pytest.mark.parametrize("block", blocks("python"))
def test_every_example_imports_what_is_there(block: str, tmp_path: Path, plugged: None) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("potstill"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, one.name) for one in node.names), ast.unparse(node)
    if found := PLUG_IN.match(block):
        thing = plugins.find(found[2], found[3])  # type: ignore[arg-type]
        assert all(
            hasattr(thing, word) for word in {"methods": ["wants", "losses"], "data": ["make"]}.get(found[2], ["build"])
        )
