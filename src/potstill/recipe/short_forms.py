"""Abbreviations in recipes: students as "keep_layers:3+trim_vocabulary", a method or a test file as a plain text."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from potstill.errors import InputError
from potstill.recipe import defaults, plugins
from potstill.recipe.explain import as_toml
from potstill.recipe.user_functions import trust_command_line

OTHER_SPLITS = ("train", "dev")
KEY: dict[plugins.Kind, str] = {"methods": "name", "students": "build", "data": "make"}  # the field with the name


def make_plugin(kind: plugins.Kind, table: dict[str, Any]) -> Any:
    """The method, student builder or data maker that a recipe's table describes."""
    return plugins.make(kind, table[KEY[kind]], {key: value for key, value in table.items() if key != KEY[kind]})


def parse_value(text: str) -> Any:
    """A TOML value (5e-5, true, [1, 2], "text"); anything else is a bare word."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


def parse_assignment(flag: str, text: str) -> tuple[str, Any]:
    """The name and the value of `--set NAME=VALUE`; functions that the value names may run, as the user wrote it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{flag} {text}: has no value; write {flag} {text}=VALUE")
    parsed = parse_value(value.strip())
    trust_command_line(parsed)
    return name.strip(), parsed


def plugin_tables(kind: plugins.Kind, value: Any) -> list[dict[str, Any]]:
    """A list of tables; from "keep_layers:3+trim_vocabulary", [{build = "keep_layers", layers = 3}, {build = …}]."""
    if not isinstance(value, list):
        # a name begins with a letter: the plus in marian:4+4x256 is part of its value
        value = re.split(r"\+(?=\s*[^\W\d])", value) if isinstance(value, str) else [value]
    name = plugins.singular(kind)
    return [plugin_table(kind, item) if isinstance(item, str) else as_table(name, item) for item in value]


def plugin_table(kind: plugins.Kind, text: str) -> dict[str, Any]:
    """The table that "NAME" or "NAME:VALUE" stands for."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon:
        return {KEY[kind]: name}
    if (short := plugins.find(kind, name).short_form(value)) is not None:
        return {KEY[kind]: name, **short}
    fields = list(plugins.annotations_of(kind, name))
    if not fields:
        raise InputError(f"{plugins.singular(kind)}.{name} takes no value; write '{name}'")
    return {KEY[kind]: name, fields[0]: parse_value(value)}


def test_table(value: Any) -> Any:
    """Test files by name; one file alone is named "test"."""
    if isinstance(value, dict) and (taken := next((name for name in OTHER_SPLITS if name in value), None)):
        advice = f'write --test other_{taken}=FILE or test = {{ other_{taken} = "FILE" }}'
        raise InputError(f"a test set cannot be named '{taken}', the name of another split; {advice}")
    return {"test": value} if isinstance(value, str) else value


def method_table(value: Any) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else {"name": defaults.AUTO, **as_table("method", value)}


def as_table(name: str, value: Any) -> dict[str, Any]:
    """The value, if it is a table."""
    if not isinstance(value, dict):
        raise InputError(f"recipe: {name} = {as_toml(value)}: expected a table; write {name} = {{ KEY = VALUE }}")
    return value


def complete(kind: plugins.Kind, value: Any) -> list[dict[str, Any]]:
    """Every table with the plug-in's defaults filled in, and each value checked."""
    key, what, completed = KEY[kind], plugins.singular(kind), []
    for table in plugin_tables(kind, value):
        if not isinstance(table.get(key), str):
            raise InputError(f'recipe: {what} {as_toml(table)} has no name; write {{ {key} = "NAME", … }}')
        fields = {name: value for name, value in table.items() if name != key}
        if table[key] == defaults.AUTO and kind != "data":
            completed.append(_open_table(kind, table, fields))
            continue
        completed.append({key: table[key], **plugins.complete(kind, table[key], fields)})
    return completed


def is_open(tables: list[dict[str, Any]]) -> bool:
    """Whether a student or a method is left to potstill, which chooses it when it knows the teacher."""
    return any(defaults.AUTO in (table.get("build"), table.get("name")) for table in tables)


def fields_of(kind: plugins.Kind, name: str) -> list[str]:
    """The fields of a plug-in; of a method that is left open, those of every method that may be chosen."""
    if name != defaults.AUTO or kind == "data":
        return list(plugins.annotations_of(kind, name))
    return [field for method in defaults.METHODS for field in fields_of("methods", method)] if kind == "methods" else []


def _open_table(kind: plugins.Kind, table: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The table of what is left open: only a method may have fields, which take precedence over the chosen ones."""
    if kind == "students" and fields:
        raise InputError("student.auto takes no fields; write 'auto' alone, or the student's own name")
    if fields:
        fitting = (name for name in defaults.METHODS if fields.keys() <= plugins.annotations_of("methods", name).keys())
        plugins.make("methods", next(fitting, defaults.METHODS[0]), fields)  # checks the values
    return table


def complete_method(value: Any) -> dict[str, Any]:
    return complete("methods", [method_table(value)])[0]
