"""Wrong values of recipes and plug-ins in plain words: what was expected, and what to write instead."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

USERS_KEYS = ("test", "grid", "label_map")  # tables whose keys the user chooses
LIMITS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def explain_error(recipe: type[BaseModel], error: ErrorDetails) -> str:
    """A validation error of pydantic as a sentence that ends with what to write."""
    model, expected = recipe, ""
    path: list[str] = []
    for place, part in enumerate(error["loc"]):
        path.append(str(part))
        if isinstance(part, str):
            if part not in model.model_fields:
                break
            field = model.model_fields[part]
            expected = in_words(field.annotation) + limits_in_words(field.metadata)
            model = table_model(field) or model
            if part in USERS_KEYS:
                path += map(str, error["loc"][place + 1 : place + 2])
                break
    where = ".".join(path)
    value = as_toml(error["input"])
    match error["type"]:
        case "missing":
            return f"recipe: {where} is missing; write {where.replace('data.0.', 'data.')} = … ({expected})"
        case "string_pattern_mismatch":
            return f"recipe: {where} = {value} names files; write letters, digits, - and _ only"
        case "too_short":
            return f"recipe: {where} is empty; give it at least one value"
    if expected.startswith("a list") or expected == "a table":
        expected = error["msg"].removeprefix("Input should be ")
    return f"recipe: {where} = {value}: expected {expected}"


def unknown_fields(model: type[BaseModel], tree: Any, place: str = "recipe:") -> Iterator[str]:
    """A sentence for each field of the tree that its schema does not know. Looks at names only."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name not in model.model_fields:
            yield f"{place} has no '{name}'{did_you_mean(name, model.model_fields)}"
        elif table := table_model(model.model_fields[name]):
            inner = f"{place} {name}" if place == "recipe:" else f"{place}.{name}"
            for number, item in enumerate(value) if isinstance(value, list) else ():
                yield from unknown_fields(table, item, f"{inner}.{number}")
            yield from unknown_fields(table, value, inner)


def table_model(field: FieldInfo) -> type[BaseModel] | None:
    """The schema of a field that holds a table with a schema, or a list of such tables."""
    parts = (field.annotation, *typing.get_args(field.annotation))
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The end of an error message: the nearest option, or all of them."""
    options = list(options)
    near = difflib.get_close_matches(word, options, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; there are: {', '.join(options) or 'none'}"


def in_words(annotation: Any) -> str:
    """The allowed values in words: `Annotated[float, Gt(0)] | None` is 'a number more than 0, or "none"'."""
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return in_words(parts[0]) + limits_in_words(parts[1:])
    if origin is Literal:
        return " or ".join(as_toml(part) for part in parts)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(in_words(part) for part in sorted(parts, key=lambda part: part is types.NoneType))
    if origin in (list, tuple):
        return f"a list (of each: {in_words(parts[0])})"
    if origin is dict or annotation is dict:
        return "a table"
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", types.NoneType: '"none"'}
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def limits_in_words(metadata: Iterable[Any]) -> str:
    """The bounds in an annotation's metadata: " at least 0, at most 1"."""
    limits = [limit for item in metadata for limit in getattr(item, "metadata", [item])]  # pydantic's Field has a list
    bounds = [(words, getattr(limit, name, None)) for limit in limits for name, words in LIMITS.items()]
    return ",".join(f" {words} {bound}" for words, bound in bounds if bound is not None)


def may_be_none(annotation: Any) -> bool:
    return types.NoneType in typing.get_args(annotation)


def as_toml(value: Any) -> str:
    """A plain value on one line as TOML writes it; None, which TOML lacks, is the bare word none."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
