"""What is said of a recipe that has a value where another kind belongs."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal


def explained(
    recipe: Any, tables: Mapping[str, Any], kind: str, location: tuple[int | str, ...], given: Any, message: str
) -> str:
    """A pydantic error as a sentence that ends with what to write. `tables`: the models of the recipe's tables by their names."""
    model = recipe
    path: list[str] = []
    words = ""
    for i, part in enumerate(location):
        path.append(str(part))
        if isinstance(part, str):
            if part not in model.model_fields:
                break
            field = model.model_fields[part]
            words = in_words(field.annotation) + limits_in_words(field.metadata)
            model = tables.get(part, model)
            if part in ("test", "grid", "label_map"):  # whose keys are the user's
                path += [str(key) for key in location[i + 1 : i + 2]]
                break
    where = ".".join(path)
    if kind == "extra_forbidden":
        parent = ".".join(path[:-1])
        told = did_you_mean(path[-1], model.model_fields)
        return f"recipe: {parent + ' ' if parent else ''}has no '{path[-1]}'{told}"
    if kind == "missing":
        return f"recipe: {where} is missing; write {where.replace('data.0.', 'data.')} = … ({words})"
    if kind == "string_pattern_mismatch":
        return f"recipe: {where} = {as_toml(given)} names files; write letters, digits, - and _ only"
    if kind == "too_short":
        return f"recipe: {where} is empty; give it at least one value"
    if words.startswith("a list") or words == "a table":
        words = message[0].lower() + message[1:].replace("Input should be", "it should be")
    return f"recipe: {where} = {as_toml(given)}: expected {words}"


def unknown_words(recipe: Any, tables: Mapping[str, Any], tree: Any) -> list[str]:
    """A sentence for each word that no field of the recipe or of its tables has. Only names are looked at."""
    found = _unknown(tree, recipe, {recipe: ("data", "stage"), tables["stage"]: ("optimizer",)}, tables, ())
    return [explained(recipe, tables, "extra_forbidden", one, None, "") for one in found]


def _unknown(
    tree: Any, model: Any, inside: Mapping[Any, tuple[str, ...]], tables: Mapping[str, Any], at: tuple[int | str, ...]
) -> Iterator[tuple[int | str, ...]]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if key not in model.model_fields:
            yield (*at, key)
        elif key in inside.get(model, ()):
            several = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, one in several:
                where = (*at, key) if place is None else (*at, key, place)
                yield from _unknown(one, tables[key], inside, tables, where)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The end of an error message: the nearest option, or all of them."""
    options = list(options)
    near = difflib.get_close_matches(word, options, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; there are: {', '.join(options) or 'none'}"


def in_words(annotation: Any) -> str:
    """What a value may be, in words: `Annotated[float, Gt(0)] | None` is "a number more than 0, or none"."""
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
    found = []
    for one in metadata:
        for limit in getattr(one, "metadata", [one]):  # pydantic's Field keeps its limits in a list of its own
            for attribute, words in {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}.items():
                if getattr(limit, attribute, None) is not None:
                    found.append(f"{words} {getattr(limit, attribute)}")
    return " " + ", ".join(found) if found else ""


def may_be_none(annotation: Any) -> bool:
    return types.NoneType in typing.get_args(annotation)


def as_toml(value: Any) -> str:
    """A plain value on one line as TOML writes it; None, which TOML lacks, is the bare word none."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
