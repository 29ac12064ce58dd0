"""A run is a value: a recipe names a teacher, data, a student and stages, and every number that decides the result.

Recipes are TOML files, or the names of those that potstill ships. Unknown words are refused. Paths of files and models
in a recipe are relative to the current directory, not to the recipe. The word "none" stands for None, which TOML lacks.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from potstill.errors import InputError
from potstill.recipe import plugins, short_forms
from potstill.recipe.explain import as_toml, did_you_mean, explained, unknown_words
from potstill.recipe.pace import paced
from potstill.recipe.schema import TABLES, Data, Optimizer, Recipe, Stage
from potstill.recipe.user_functions import note_written
from potstill.system.paths import given

RECIPES = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Resolved:
    """A recipe, and where each value is from: "stage.0.method.beta" -> "--set", a flag, a file's name or "default"."""

    recipe: Recipe
    sources: dict[str, str]


Flags = Mapping[str, tuple[str, Any]]


def resolve(path: str | Path | None, flags: Flags | None = None, sets: Sequence[str] = ()) -> Resolved:
    """The recipe of a file or a shipped name, changed by flags, then by `--set path=value`.

    Flags are {"teacher": ("--teacher", value)}; one whose value is None was not given.
    """
    source, tree = ("", {}) if path is None else _read(path)
    tree = _normal(tree)
    sources = {leaf: source for leaf, _ in leaves(tree)}
    for key, (flag, value) in (flags or {}).items():
        if value is not None:
            note_written(value)
            tree = _assign(tree, key, value, flag, sources)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: has no value; write --set {text}=VALUE")
        value_given = short_forms.parse_value(value.strip())
        note_written(value_given)
        tree = _assign(tree, key.strip(), value_given, "--set", sources)
    written = _with_task(_validated(tree), sources)
    recipe = paced(written)
    left = {leaf for leaf, value in leaves(written.model_dump()) if value is None}
    sources |= {leaf: "student" for leaf, value in leaves(recipe.model_dump()) if leaf in left and value is not None}
    grid_recipes(recipe)  # a wrong value in the grid is told now, not after a night of runs
    return Resolved(recipe, {leaf: sources.get(leaf, "default") for leaf, _ in leaves(recipe.model_dump())})


def _with_task(recipe: Recipe, sources: dict[str, str]) -> Recipe:
    """Where neither the user nor a teacher says what the rows are for, a student that can only translate does."""
    built = (plugins.find("students", one["build"]) for one in recipe.student)
    if not any(getattr(one, "serves", ()) == ("Seq2SeqLM",) for one in built):
        return recipe
    told = [number for number, one in enumerate(recipe.data) if not (one.task or one.teacher or recipe.teacher)]
    sources |= {f"data.{number}.task": "student" for number in told}
    named = [one.model_copy(update={"task": "translate"} if n in told else {}) for n, one in enumerate(recipe.data)]
    return recipe.model_copy(update={"data": named})


def grid_recipes(recipe: Recipe) -> list[tuple[dict[str, Any], Recipe]]:
    """All combinations of the grid: what each sets, and its recipe without a grid."""
    plain = recipe.model_dump(exclude={"grid"})
    found = []
    for values in itertools.product(*recipe.grid.values()):
        chosen = dict(zip(recipe.grid, values, strict=True))
        tree = plain
        try:
            for path, value in chosen.items():
                tree = _assign(tree, path, value, "grid", {})
            found.append((chosen, paced(_validated(tree))))
        except InputError as error:
            raise InputError(f"grid, at {as_toml(chosen)}: {error}") from None
    return found


def show(resolved: Resolved) -> str:
    """One line per value, `path = value  # source`, the paths as --set takes them."""
    lines = [(f"{leaf} = {as_toml(value)}", leaf) for leaf, value in leaves(resolved.recipe.model_dump())]
    width = min(60, max(len(line) for line, _ in lines))
    return "".join(f"{line:<{width}}  # {resolved.sources[leaf]}\n" for line, leaf in lines)


def shipped() -> list[str]:
    """The names of the recipes that come with potstill."""
    return sorted(file.stem for file in RECIPES.glob("*.toml"))


def _read(path: str | Path) -> tuple[str, dict[str, Any]]:
    file = given(path)
    if not file.is_file():
        if file.suffix == ".toml" or len(file.parts) != 1:
            raise InputError(f"there is no file {path}; write a TOML file or one of: {', '.join(shipped())}")
        if str(path) not in shipped():
            raise InputError(f"there is no recipe '{path}'{did_you_mean(str(path), shipped())}")
        file = RECIPES / f"{path}.toml"
    try:
        text = file.read_bytes().decode("utf-8-sig")
        return file.name, {"name": file.stem, **tomllib.loads(text)}
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(f"{file}:{line}: is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise InputError(f"{file}: lists or tables lie too deep in each other; write KEY = VALUE") from None
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(error))
        line = int(at[1]) if at and at[1] else len(text.rstrip().splitlines())
        reason = str(error)[: at.start()] if at else str(error)
        raise InputError(f'{file}:{line}: {reason}; write KEY = VALUE, with texts in "quotes"') from None


def _normal(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with every short form written out, so that each value has one path."""

    def tables(key: str, forms: dict[str, Callable[[Any], Any]]) -> list[Any]:
        given = tree.get(key, {})
        members = [short_forms.table(key, one) for one in (given if isinstance(given, list) else [given])]
        return [{word: forms.get(word, same)(value) for word, value in one.items()} for one in members]

    def same(value: Any) -> Any:
        return value

    makers, builders = partial(short_forms.things, "data"), partial(short_forms.things, "students")
    changed = {"data": tables("data", {"test": short_forms.tests})}
    changed["stage"] = tables("stage", {"method": short_forms.method, "data": makers, "reshape": builders})
    if "student" in tree:
        changed["student"] = builders(tree["student"])
    return {**tree, **changed}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each plain value with its path; a list of plain values is one value."""
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        children = list(enumerate(value))
    else:
        yield path, value
        return
    for key, child in children:
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def _paths(tree: dict[str, Any]) -> dict[str, str]:
    """Every way to write a path -> the path in full: a list's only index may be left out, and so may `stage.0`."""
    full = list(Recipe.model_fields)
    short: list[tuple[str, str]] = []

    def members(prefix: str, things: Sequence[Any], fields: Callable[[Any], Iterable[str]]) -> None:
        for i, thing in enumerate(things):
            full.extend(f"{prefix}.{i}.{field}" for field in fields(thing))
        if len(things) == 1:
            short.append((f"{prefix}.0.", f"{prefix}."))

    def own(kind: plugins.Kind, thing: dict[str, Any]) -> list[str]:
        word = short_forms.KEY[kind]
        return [word, *plugins.annotations_of(kind, thing[word])] if isinstance(thing.get(word), str) else [word]

    for i, stage in enumerate(tree["stage"]):
        members(f"stage.{i}.data", stage.get("data", []), partial(own, "data"))
        members(f"stage.{i}.reshape", stage.get("reshape", []), partial(own, "students"))
        full += [f"stage.{i}.method.{field}" for field in own("methods", short_forms.method(stage.get("method", {})))]
        full += [f"stage.{i}.optimizer.{field}" for field in Optimizer.model_fields]
    members("stage", tree["stage"], lambda stage: Stage.model_fields)
    members("data", tree["data"], lambda data: Data.model_fields)
    members("student", tree.get("student", []), partial(own, "students"))
    if len(tree["stage"]) == 1:
        short.append(("stage.0.", ""))
    ways = {path: path for path in full}
    for path in full:
        forms = [path]
        for long, brief in short:
            forms += [brief + form.removeprefix(long) for form in forms if form.startswith(long)]
        for form in forms:
            if not (path.startswith("stage.") and form.startswith("data.")):  # data.… is the recipe's data set
                ways.setdefault(form, path)
    return ways


def _full(tree: dict[str, Any], path: str) -> list[str]:
    """The parts of a path in full."""
    ways = _paths(tree)
    if path.startswith("grid."):
        return path.split(".", 1)
    parent, _, name = path.rpartition(".")
    if re.fullmatch(r"data\.\d+\.(test|label_map)", ways.get(parent, "")):
        return [*ways[parent].split("."), name]
    if path not in ways:
        several = f"; there are {len(tree['stage'])} stages: write stage.0.{path}" if f"stage.0.{path}" in ways else ""
        inside = [way for way in ways if way.endswith(f".{path}")]
        near = f"; did you mean '{min(inside, key=len)}'?" if inside else did_you_mean(path, ways)
        raise InputError(f"there is no '{path}' in the recipe{several or near}")
    return ways[path].split(".")


def _assign(tree: dict[str, Any], path: str, value: Any, source: str, sources: dict[str, str]) -> dict[str, Any]:
    """The tree with one value changed; `sources` is told."""
    value = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    parts = _full(tree, path)
    if parts[-1] == "method" and isinstance(value, str):
        parts.append("name")
    tree = copy.deepcopy(tree)
    parent: Any = tree
    for part in parts[:-1]:
        parent = parent[int(part)] if isinstance(parent, list) else parent.setdefault(part, {})
        if not isinstance(parent, dict | list):
            short_forms.table(part, parent)
    if parts[-2:] == ["method", "name"] and parent.get("name", short_forms.PLAIN_METHOD) != value:
        parent.clear()  # another method has other fields
        _forget(sources, ".".join(parts[:-1]))
    parent[parts[-1]] = value
    tree = _normal(tree)
    target = ".".join(parts)
    _forget(sources, target)
    sources.update({leaf: source for leaf, _ in leaves(tree) if f"{leaf}.".startswith(f"{target}.")})
    return tree


def _forget(sources: dict[str, str], path: str) -> None:
    for leaf in [leaf for leaf in sources if f"{leaf}.".startswith(f"{path}.")]:
        del sources[leaf]


def _validated(tree: dict[str, Any]) -> Recipe:
    # before methods and students are looked at, which imports torch: a misspelt word is told at once
    if told := unknown_words(Recipe, TABLES, tree):
        raise InputError("\n".join(told))
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        wrong = dict.fromkeys(
            explained(Recipe, TABLES, one["type"], one["loc"], one["input"], one["msg"]) for one in error.errors()
        )
        raise InputError("\n".join(wrong)) from None
