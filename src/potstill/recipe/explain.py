"""What is said of a recipe that has a value where another kind belongs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from potstill.recipe import plugins


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
            words = plugins.in_words(field.annotation) + plugins.limits_in_words(field.metadata)
            model = tables.get(part, model)
            if part in ("test", "grid", "label_map"):  # whose keys are the user's
                path += [str(key) for key in location[i + 1 : i + 2]]
                break
    where = ".".join(path)
    if kind == "extra_forbidden":
        parent = ".".join(path[:-1])
        told = plugins.did_you_mean(path[-1], model.model_fields)
        return f"recipe: {parent + ' ' if parent else ''}has no '{path[-1]}'{told}"
    if kind == "missing":
        return f"recipe: {where} is missing; write {where.replace('data.0.', 'data.')} = … ({words})"
    if kind == "string_pattern_mismatch":
        return f"recipe: {where} = {plugins.as_toml(given)} names files; write letters, digits, - and _ only"
    if kind == "too_short":
        return f"recipe: {where} is empty; give it at least one value"
    if words.startswith("a list") or words == "a table":
        words = message[0].lower() + message[1:].replace("Input should be", "it should be")
    return f"recipe: {where} = {plugins.as_toml(given)}: expected {words}"


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
