"""From a TOML file or a shipped recipe, flags and `--set` to a recipe in which every value is filled in.

Unknown fields are refused. Paths of files and models in a recipe are relative to the current directory, not to the
recipe. The word "none" stands for None, which TOML lacks.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from potstill.errors import InputError
from potstill.recipe import defaults, plugins, short_forms
from potstill.recipe.explain import as_toml, did_you_mean, explain_error, unknown_fields
from potstill.recipe.pace import with_pace
from potstill.recipe.schema import Data, Optimizer, Recipe, Stage
from potstill.recipe.user_functions import trust_command_line
from potstill.system.paths import expand_user, unreadable

RECIPES = Path(__file__).parent / "shipped"
# fields that are tables or lists of tables, with their model or the kind of the plug-in that they describe
TABLES: dict[Any, dict[str, Any]] = {
    Recipe: {"data": Data, "stage": Stage, "student": "students"},
    Stage: {"data": "data", "reshape": "students", "method": "methods", "optimizer": Optimizer},
}
REPLACED_BY = {"rate": "rates", "epochs": "min_steps"}
Flags = Mapping[str, tuple[str, Any]]
"""Path of the field -> the flag and its value: {"teacher": ("--teacher", "models/large")}. None: the flag was omitted."""


@dataclass(frozen=True)
class Resolved:
    """A recipe, and the source of each value: "stage.0.method.beta" -> "--set", a flag, the name of a file, "student" or "default"."""

    recipe: Recipe
    sources: dict[str, str]


def resolve(path: str | Path | None, flags: Flags | None = None, sets: Sequence[str] = ()) -> Resolved:
    """Read a recipe from a file or by its shipped name, then apply flags, then each "path=value" of `sets`."""
    source, tree = ("", {}) if path is None else _read(path)
    tree = _without_short_forms(tree)
    sources = {leaf: source for leaf, _ in leaves(tree)}
    for key, (flag, value) in (flags or {}).items():
        if value is not None:
            trust_command_line(value)
            tree = _assign(tree, key, value, flag, sources)
    for text in sets:
        tree = _assign(tree, *short_forms.parse_assignment("--set", text), "--set", sources)
    written = _with_task(_validated(tree), sources)
    recipe = with_pace(written)
    unset = {leaf for leaf, value in leaves(written.model_dump()) if value is None}
    found = [leaf for leaf, value in leaves(recipe.model_dump()) if leaf in unset and value not in (None, [], 0)]
    sources |= dict.fromkeys(found, "student")
    grid_recipes(recipe)  # report a wrong value in the grid now, not after hours of training
    return Resolved(recipe, {leaf: sources.get(leaf, "default") for leaf, _ in leaves(recipe.model_dump())})


def grid_recipes(recipe: Recipe) -> list[tuple[dict[str, Any], Recipe]]:
    """Every combination of the grid: the values it sets, and its recipe without a grid."""
    plain = recipe.model_dump(exclude={"grid"})
    combinations = []
    for values in itertools.product(*recipe.grid.values()):
        chosen = dict(zip(recipe.grid, values, strict=True))
        tree, sources = plain, dict[str, str]()
        try:
            for path, value in chosen.items():
                tree = _assign(tree, path, value, "grid", sources)
            combinations.append((chosen, with_pace(_validated(tree))))
        except InputError as error:
            raise InputError(f"grid, at {as_toml(chosen)}: {error}") from None
    return combinations


def show(resolved: Resolved) -> str:
    """One line per value, `path = value  # source`, with paths as --set takes them."""
    lines = [(f"{leaf} = {as_toml(value)}", leaf) for leaf, value in leaves(resolved.recipe.model_dump())]
    width = min(60, max(len(line) for line, _ in lines))
    return "".join(f"{line:<{width}}  # {resolved.sources[leaf]}\n" for line, leaf in lines)


def shipped() -> list[str]:
    """The names of the recipes that come with potstill."""
    return sorted(file.stem for file in RECIPES.glob("*.toml"))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each plain value with its path; a list of plain values is one value."""
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        children = list(enumerate(value))
    else:
        yield path, value
        return
    for key, child in children:
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def _read(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The name of a recipe's file, and its content."""
    file = expand_user(path)
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
        raise unreadable(file, error) from None
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(f"{file}:{line}: is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise InputError(f"{file}: lists or tables are nested too deeply; write KEY = VALUE") from None
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(error))
        line = int(at[1]) if at and at[1] else len(text.rstrip().splitlines())
        reason = str(error)[: at.start()] if at else str(error)
        raise InputError(f'{file}:{line}: {reason}; write KEY = VALUE, with texts in "quotes"') from None


def _with_task(recipe: Recipe, sources: dict[str, str]) -> Recipe:
    """Set the task to translate if the student can only translate, and neither the user nor a teacher says another."""
    if short_forms.is_open(recipe.student):
        return recipe
    builders = (plugins.find("students", table["build"]) for table in recipe.student)
    if not any(builder.task_heads == ("Seq2SeqLM",) for builder in builders):
        return recipe
    data_sets = list(recipe.data)
    for number, data in enumerate(data_sets):
        if not (data.task or recipe.teachers):
            data_sets[number] = data.model_copy(update={"task": "translate"})
            sources[f"data.{number}.task"] = "student"
    return recipe.model_copy(update={"data": data_sets})


def _without_short_forms(table: Mapping[str, Any], schema: Any = Recipe) -> dict[str, Any]:
    """The table with every short form written out, so that each value has one path."""
    longer = dict(table)
    for field, inner in TABLES.get(schema, {}).items():
        if inner in (Data, Stage):
            value = table.get(field, {})
            tables = [short_forms.as_table(field, item) for item in (value if isinstance(value, list) else [value])]
            longer[field] = [_without_short_forms(item, inner) for item in tables]
        elif field in table and inner == "methods":
            longer[field] = short_forms.method_table(table[field])
        elif field in table and inner in short_forms.KEY:
            longer[field] = short_forms.plugin_tables(inner, table[field])
    if schema is Data and "test" in table:
        longer["test"] = short_forms.test_table(table["test"])
    return longer


def _paths(table: dict[str, Any], schema: Any = Recipe) -> dict[str, str]:
    """Every way to write a path -> the full path: the only index of a list may be omitted.

    `schema` is the model of the table, or the kind of the plug-in that it describes.
    """
    if schema in short_forms.KEY:
        key = short_forms.KEY[schema]
        fields = [key, *short_forms.fields_of(schema, table[key])] if isinstance(table.get(key), str) else [key]
    else:
        fields = list(schema.model_fields)
    paths = {field: field for field in fields}
    for field, inner in TABLES.get(schema, {}).items():
        value = table.get(field, {} if field in ("method", "optimizer") else [])
        value = short_forms.method_table(value) if field == "method" else value
        is_list = isinstance(value, list)
        places = [(f"{field}.{number}", item) for number, item in enumerate(value)] if is_list else [(field, value)]
        for place, item in places:
            for form, full in _paths(item, inner).items():
                paths[f"{place}.{form}"] = f"{place}.{full}"
                if len(places) == 1:
                    paths[f"{field}.{form}"] = f"{place}.{full}"
    return paths


def _full_path(tree: dict[str, Any], path: str) -> list[str]:
    """The parts of a path in full."""
    paths = _paths(tree)
    if len(tree["stage"]) == 1:  # stage.0 may be omitted, except before data, which is the recipe's data set
        inner = [form for form in paths if form.startswith("stage.0.") and not form.startswith("stage.0.data.")]
        paths = {form.removeprefix("stage.0."): paths[form] for form in inner} | paths
    if path.startswith("grid."):
        return path.split(".", 1)
    parent, _, name = path.rpartition(".")
    if re.fullmatch(r"data\.\d+\.(test|label_map)", paths.get(parent, "")):
        return [*paths[parent].split("."), name]
    if path in paths:
        return paths[path].split(".")
    if f"stage.0.{path}" in paths:
        hint = f"; there are {len(tree['stage'])} stages: write stage.0.{path}"
    elif inner := [longer for longer in paths if longer.endswith(f".{path}")]:
        hint = f"; did you mean '{min(inner, key=len)}'?"
    else:
        hint = did_you_mean(path, paths)
    raise InputError(f"there is no '{path}' in the recipe{hint}")


def _assign(tree: dict[str, Any], path: str, value: Any, source: str, sources: dict[str, str]) -> dict[str, Any]:
    """A copy of the tree with one value changed; `sources` is updated in place."""
    value = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    parts = _full_path(tree, path)
    if parts[-1] == "method" and isinstance(value, str):
        parts.append("name")
    target = replaced = ".".join(parts)
    tree = copy.deepcopy(tree)
    parent: Any = tree
    for part in parts[:-1]:
        parent = parent[int(part)] if isinstance(parent, list) else parent.setdefault(part, {})
        if not isinstance(parent, dict | list):
            short_forms.as_table(part, parent)
    if parts[-2:] == ["method", "name"] and value not in _same_fields(parent.get("name", defaults.AUTO)):
        parent.clear()  # another method has other fields
        replaced = ".".join(parts[:-1])
    if value not in (None, "auto"):
        _drop_replaced(parent, parts, source, sources)
    parent[parts[-1]] = value
    tree = _without_short_forms(tree)
    for leaf in [leaf for leaf in sources if f"{leaf}.".startswith(f"{replaced}.")]:
        del sources[leaf]
    sources.update({leaf: source for leaf, _ in leaves(tree) if f"{leaf}.".startswith(f"{target}.")})
    return tree


def _drop_replaced(parent: dict[str, Any], parts: list[str], source: str, sources: dict[str, str]) -> None:
    """Remove what an earlier source says beside a value that takes its place: rates are not tried where one is given."""
    other = REPLACED_BY.get(parts[-1], "")
    beside = ".".join([*parts[:-1], other])
    if other in parent and sources.get(beside) != source:
        del parent[other]
        sources.pop(beside, None)


def _same_fields(method: str) -> tuple[str, ...]:
    """The methods whose fields a table of this method may hold: its own, or those of all that may be chosen."""
    return (method, *defaults.METHODS) if method == defaults.AUTO else (method,)


def _validated(tree: dict[str, Any]) -> Recipe:
    # first the names of fields: no plug-in is imported for them
    if unknown := list(unknown_fields(Recipe, tree)):
        raise InputError("\n".join(unknown))
    try:
        return Recipe.model_validate(tree)
    except ValidationError as errors:
        messages = dict.fromkeys(explain_error(Recipe, error) for error in errors.errors())
        raise InputError("\n".join(messages)) from None
