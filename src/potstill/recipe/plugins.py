"""Which methods, students, data makers, exports and studies there are: a file's name is the word that the user types.

A file of `potstill/methods/` holds one public dataclass; its fields are what a recipe may say about it. Folders that
the environment variable POTSTILL_PLUGINS names hold the same sub-folders and add to them, without replacing anything.
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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from potstill.errors import InputError
from potstill.recipe.explain import as_toml, did_you_mean, in_words, may_be_none

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Kind = Literal["methods", "students", "data", "exports", "studies"]
ONE_OF: dict[Kind, str] = {
    "methods": "method",
    "students": "student",
    "data": "data",
    "exports": "export",
    "studies": "study",
}
BASES: dict[Kind, str] = {  # the class of potstill.api that a plug-in of this kind inherits
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


def names(kind: Kind) -> list[str]:
    """All names of a kind, built-in ones first. Imports nothing, so that a listing is quick."""
    return list(_files(kind))


def load(kind: Kind) -> dict[str, Any]:
    """Every name of a kind with its dataclass."""
    return {name: _dataclass(kind, name, file) for name, file in _files(kind).items()}


def make(kind: Kind, name: str, fields: Mapping[str, Any]) -> Any:
    """The named thing with these fields, each checked against its annotation; the word "none" stands for None."""
    from pydantic import ValidationError

    where = f"{ONE_OF[kind]}.{name}"
    hints = annotations_of(kind, name)
    for field in fields:
        if field not in hints:
            raise InputError(f"{where} has no '{field}'{did_you_mean(field, hints)}")
    given = {field: None if value == "none" and may_be_none(hints[field]) else value for field, value in fields.items()}
    try:
        # JSON, because its strict form takes a list for a tuple and 5 for 5.0, but not "5" for 5 and not true for 1
        return _adapter(find(kind, name)).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise InputError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
        field = str(first["loc"][0])
        if field not in given:
            raise InputError(f"{where}.{field} is missing; write {field} = … ({in_words(hints[field])})") from None
        raise InputError(f"{where}.{field} = {as_toml(given[field])}: expected {in_words(hints[field])}") from None


def complete(kind: Kind, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with every default filled in, as plain values that TOML and JSON can hold."""
    values: dict[str, Any] = _adapter(find(kind, name)).dump_python(make(kind, name, fields), mode="json")
    return values


def describe(kind: Kind, name: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The first line of the file's docstring, and of each field its name, its type in words and its default as TOML."""
    thing = find(kind, name)
    text = sys.modules[thing.__module__].__doc__ or thing.__doc__ or ""
    hints = annotations_of(kind, name)
    values = defaults(kind, name)
    rows = [
        (field, in_words(hint), as_toml(values[field]) if field in values else "needed")
        for field, hint in hints.items()
    ]
    return text.strip().partition("\n")[0], rows


def find(kind: Kind, name: str) -> Any:
    """The dataclass of one name."""
    return _dataclass(kind, name, file_of(kind, name))


def file_of(kind: Kind, name: str) -> Path:
    """Where a name is defined."""
    files = _files(kind)
    if name not in files:
        guess = did_you_mean(name, files)
        every = "" if "there are" in guess else f" There are: {', '.join(files)}"
        raise InputError(f"there is no {ONE_OF[kind]} '{name}'{guess}{every}")
    return files[name]


def annotations_of(kind: Kind, name: str) -> dict[str, Any]:
    """The fields of a name in their order, each with its annotation."""
    return _annotations(find(kind, name))


def defaults(kind: Kind, name: str) -> dict[str, Any]:
    """The default of every field that has one."""
    values = {}
    for field in dataclasses.fields(find(kind, name)):
        if field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
    return values


def _files(kind: Kind) -> dict[str, Path]:
    return _files_below(kind, BUILT_IN, os.environ.get("POTSTILL_PLUGINS", ""))


@lru_cache(maxsize=64)  # a grid of 108 recipes asks some thousand times
def _files_below(kind: Kind, built_in: Path, plugged: str) -> dict[str, Path]:
    given = [Path(folder) for folder in plugged.split(os.pathsep) if folder]
    for folder in given:
        if not folder.is_dir():
            raise InputError(f"POTSTILL_PLUGINS names {folder}, which is not a folder; name one that holds {kind}/")
    found: dict[str, Path] = {}
    for folder in dict.fromkeys([built_in, *(folder.resolve() for folder in given)]):
        for file in sorted((folder / kind).glob("*.py")):
            if file.stem.startswith("_"):
                continue
            if file.stem in found:
                raise InputError(f"{file}: the {ONE_OF[kind]} '{file.stem}' exists already; give the file another name")
            found[file.stem] = file
    return found


def _dataclass(kind: Kind, name: str, file: Path) -> Any:
    module = _module(kind, name, file)
    found = [
        thing
        for word, thing in vars(module).items()
        if isinstance(thing, type)
        and dataclasses.is_dataclass(thing)
        and thing.__module__ == module.__name__
        and not word.startswith("_")
    ]
    if len(found) != 1:
        many = ", ".join(thing.__name__ for thing in found) or "none"
        raise InputError(f"{file}: needs exactly one public dataclass, has {many}; start the names of others with _")
    _check_base(kind, found[0], file)
    return found[0]


def _check_base(kind: Kind, plugin: type, file: Path) -> None:
    name, base = plugin.__name__, BASES[kind]
    if not issubclass(plugin, Plugin) or plugin.plugin_kind != kind:
        raise InputError(
            f"{file}: {name} is not a {base}; write 'from potstill.api import {base}' and 'class {name}({base}):'"
        )
    if lacking := sorted(plugin.__abstractmethods__):
        raise InputError(f"{file}: {name} has no {' and no '.join(lacking)}; write 'def {lacking[0]}(self, …)'")


def _module(kind: Kind, name: str, file: Path) -> types.ModuleType:
    if file.parent.parent == BUILT_IN:
        return importlib.import_module(f"potstill.plugins.{kind}.{name}")
    module_name = f"potstill_plugins.{kind}.{name}"
    known = sys.modules.get(module_name)
    if known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file that can be loaded; plug-ins end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # the dataclass's annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InputError(f"{file}: cannot be loaded: {type(error).__name__}: {error}; mend or remove it") from error
    return module


@lru_cache(maxsize=256)
def _annotations(thing: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(thing, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(thing) if field.init}


@lru_cache(maxsize=256)
def _adapter(thing: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(thing)
