"""Find methods, students, data makers, exports and studies: the name of a file is the word that the user types.

A file of `potstill/plugins/methods/` holds one public dataclass; its fields are the fields of the method in a recipe.
Folders in the environment variable POTSTILL_PLUGINS have the same sub-folders. They add plug-ins and replace none.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import types
import typing
from abc import ABC
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from potstill.errors import InputError
from potstill.recipe.explain import as_toml, did_you_mean, in_words, may_be_none

Kind = Literal["methods", "students", "data", "exports", "studies"]
# the class of potstill.api that a plug-in of this kind inherits
BASES: dict[Kind, str] = {
    "methods": "Method",
    "students": "Builder",
    "data": "DataMaker",
    "exports": "Export",
    "studies": "Study",
}
BUILT_IN = Path(__file__).parent.parent / "plugins"


class Plugin(ABC):
    """The base of every kind's base."""

    plugin_kind: ClassVar[Kind]

    @classmethod
    def short_form(cls, text: str) -> dict[str, Any] | None:
        """Return the fields that "NAME:TEXT" in a recipe stands for. None: TEXT is the value of the first field."""
        return None


def singular(kind: Kind) -> str:
    return "study" if kind == "studies" else kind.removesuffix("s")


def names(kind: Kind) -> list[str]:
    """All names of a kind, built-in ones first. Imports nothing."""
    return list(_files(kind, (BUILT_IN, *user_folders())))


def make(kind: Kind, name: str, fields: Mapping[str, Any]) -> Any:
    """The plug-in with these fields, each checked against its annotation; the word "none" stands for None."""
    where = f"{singular(kind)}.{name}"
    hints = annotations_of(kind, name)
    for field in fields:
        if field not in hints:
            raise InputError(f"{where} has no '{field}'{did_you_mean(field, hints)}")
    nones = {field for field, value in fields.items() if value == "none" and may_be_none(hints[field])}
    values = {**fields, **dict.fromkeys(nones)}
    try:
        # JSON, because its strict form takes a list for a tuple and 5 for 5.0, but not "5" for 5 and not true for 1
        return _adapter(find(kind, name)).validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise InputError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
        field = str(first["loc"][0])
        expected = in_words(hints[field])
        if field not in values:
            raise InputError(f"{where}.{field} is missing; write {field} = … ({expected})") from None
        raise InputError(f"{where}.{field} = {as_toml(values[field])}: expected {expected}") from None


def complete(kind: Kind, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with every default filled in, as plain values that TOML and JSON can hold."""
    values: dict[str, Any] = _adapter(find(kind, name)).dump_python(make(kind, name, fields), mode="json")
    return values


def describe(kind: Kind, name: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The first line of the file's docstring, and the name, the type in words and the default of each field."""
    plugin = find(kind, name)
    text = sys.modules[plugin.__module__].__doc__ or plugin.__doc__ or ""
    written = {field: as_toml(value) for field, value in defaults(kind, name).items()}
    hints = annotations_of(kind, name)
    rows = [(field, in_words(hint), written.get(field, "needed")) for field, hint in hints.items()]
    return text.strip().partition("\n")[0], rows


def find(kind: Kind, name: str) -> Any:
    """The dataclass of a plug-in."""
    file, base = file_of(kind, name), BASES[kind]
    module = _module(kind, name, file)
    classes = [value for value in vars(module).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
    own = [plugin for plugin in classes if plugin.__module__ == module.__name__]
    public = [plugin for plugin in own if not plugin.__name__.startswith("_")]
    class_names = ", ".join(plugin.__name__ for plugin in public) or "none"
    if len(public) != 1:
        raise InputError(f"{file}: needs exactly one public dataclass, has {class_names}; start other names with _")
    plugin = public[0]
    if not issubclass(plugin, Plugin) or plugin.plugin_kind != kind:
        advice = f"write 'from potstill.api import {base}' and 'class {class_names}({base}):'"
        raise InputError(f"{file}: {class_names} is not a {base}; {advice}")
    if missing := sorted(plugin.__abstractmethods__):
        missing_names = " and no ".join(missing)
        raise InputError(f"{file}: {class_names} has no {missing_names}; write 'def {missing[0]}(self, …)'")
    return plugin


def file_of(kind: Kind, name: str) -> Path:
    """The file of a plug-in."""
    files = _files(kind, (BUILT_IN, *user_folders()))
    if name not in files:
        hint = did_you_mean(name, files)
        all_names = "" if "there are" in hint else f" There are: {', '.join(files)}"
        raise InputError(f"there is no {singular(kind)} '{name}'{hint}{all_names}")
    return files[name]


def annotations_of(kind: Kind, name: str) -> dict[str, Any]:
    """The fields of a plug-in in their order, each with its annotation."""
    return _annotations(find(kind, name))


def defaults(kind: Kind, name: str) -> dict[str, Any]:
    """The default of every field that has one."""
    fields, missing = dataclasses.fields(find(kind, name)), dataclasses.MISSING
    values = {field.name: field.default for field in fields if field.default is not missing}
    return values | {field.name: field.default_factory() for field in fields if field.default_factory is not missing}


def user_folders() -> list[Path]:
    """The folders that POTSTILL_PLUGINS names."""
    return [Path(folder).resolve() for folder in os.environ.get("POTSTILL_PLUGINS", "").split(os.pathsep) if folder]


@lru_cache(maxsize=64)  # resolving a grid of 108 recipes asks some thousand times
def _files(kind: Kind, folders: tuple[Path, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in dict.fromkeys(folders):
        if folder != BUILT_IN and not folder.is_dir():
            raise InputError(f"POTSTILL_PLUGINS names {folder}, which is not a folder; name one that holds {kind}/")
        for file in sorted((folder / kind).glob("[!_]*.py")):
            if file.stem in files:
                raise InputError(f"{file}: the {singular(kind)} '{file.stem}' exists already; rename the file")
            files[file.stem] = file
    return files


def _module(kind: Kind, name: str, file: Path) -> types.ModuleType:
    if file.parent.parent == BUILT_IN:
        return importlib.import_module(f"potstill.plugins.{kind}.{name}")
    module_name = f"potstill_plugins.{kind}.{name}"
    if module_name in sys.modules and sys.modules[module_name].__file__ == str(file):
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None  # the name ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # annotations of the dataclass are resolved there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InputError(f"{file}: cannot be loaded: {type(error).__name__}: {error}; fix or remove it") from error
    return module


@lru_cache(maxsize=256)
def _annotations(plugin: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(plugin, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(plugin) if field.init}


@lru_cache(maxsize=256)
def _adapter(plugin: Any) -> TypeAdapter[Any]:
    return TypeAdapter(plugin)
