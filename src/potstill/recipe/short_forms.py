"""What a recipe may abbreviate: students as "keep_layers:3+trim_vocabulary", a method or test file as a plain text."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from potstill.errors import InputError
from potstill.recipe import plugins
from potstill.recipe.explain import as_toml

PLAIN_METHOD = "soft_targets"
OTHER_SPLITS = ("train", "dev")
KEY: dict[plugins.Kind, str] = {"methods": "name", "students": "build", "data": "make"}  # what names a thing in a table


def made(kind: plugins.Kind, fields: dict[str, Any]) -> Any:
    """The method, student or data maker that a recipe's table stands for."""
    return plugins.make(kind, fields[KEY[kind]], {key: value for key, value in fields.items() if key != KEY[kind]})


def parse_value(text: str) -> Any:
    """A TOML value (5e-5, true, [1, 2], "text"); anything else is a bare word."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


def things(kind: plugins.Kind, value: Any) -> list[dict[str, Any]]:
    """A list of tables; from "keep_layers:3+trim_vocabulary", [{build = "keep_layers", layers = 3}, {build = …}]."""
    if not isinstance(value, list):
        # a name begins with a letter: the plus in marian:4+4x256 is part of its value
        value = re.split(r"\+(?=\s*[^\W\d])", value) if isinstance(value, str) else [value]
    return [thing(kind, one) if isinstance(one, str) else table(plugins.ONE_OF[kind], one) for one in value]


def thing(kind: plugins.Kind, text: str) -> dict[str, Any]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon:
        return {KEY[kind]: name}
    if read := getattr(plugins.find(kind, name), "short_form", None):
        return {KEY[kind]: name, **read(value)}
    fields = list(plugins.annotations_of(kind, name))
    if not fields:
        raise InputError(f"{plugins.ONE_OF[kind]}.{name} takes no value; write '{name}'")
    return {KEY[kind]: name, fields[0]: parse_value(value)}


def tests(value: Any) -> Any:
    if isinstance(value, dict) and (taken := next((name for name in OTHER_SPLITS if name in value), None)):
        raise InputError(
            f"a test set cannot be called '{taken}', which is what the run learns from or chooses by; "
            f'give it another name, as in --test other_{taken}=FILE or test = {{ other_{taken} = "FILE" }}'
        )
    return {"test": value} if isinstance(value, str) else value


def class_name(value: Any) -> Any:
    """Classes may be written as numbers: { positive = 1 }."""
    return str(value) if type(value) is int else value


def method(value: Any) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else {"name": PLAIN_METHOD, **table("method", value)}


def table(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"recipe: {what} = {as_toml(value)}: expected a table; write {what} = {{ KEY = VALUE }}")
    return value


def complete(kind: plugins.Kind, value: Any) -> list[dict[str, Any]]:
    """Every table with its thing's defaults filled in, and each value checked."""
    word, found = KEY[kind], []
    for one in things(kind, value):
        if not isinstance(one.get(word), str):
            what = plugins.ONE_OF[kind]
            raise InputError(f'recipe: {what} {as_toml(one)} has no name; write {{ {word} = "NAME", … }}')
        fields = {field: given for field, given in one.items() if field != word}
        found.append({word: one[word], **plugins.complete(kind, one[word], fields)})
    return found


def complete_method(value: Any) -> dict[str, Any]:
    return complete("methods", [method(value)])[0]
