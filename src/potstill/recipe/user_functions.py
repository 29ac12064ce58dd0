"""A user's own function, by the name "module:function"; and who may name one.

A recipe may come from a stranger, and a function of any installed module may start what it is given. So a recipe's file
alone names no code that runs. It is the user who does: by writing the name on the command line, by keeping the module in
a folder of POTSTILL_PLUGINS, or by POTSTILL_COMMANDS=allowed in the environment, which commands need as well.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from potstill.errors import InputError

_WRITTEN: set[str] = set()  # texts of this process's command line


def note_written(value: Any) -> None:
    """Every text in a value of the command line: what the user wrote there may be run."""
    if isinstance(value, str):
        _WRITTEN.add(value)
    for inside in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        note_written(inside)


def code_is_allowed() -> bool:
    return os.environ.get("POTSTILL_COMMANDS") == "allowed"


def own_function(what: str, name: str, instead: str) -> Any:
    """The function "module:function". The standard library runs what it is given: it is refused whoever names it, with what
    to write `instead`."""
    module, colon, attribute = name.partition(":")
    if not colon or module.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(f"there is no {what} '{name}'; write {instead}")
    named_by_user = name in _WRITTEN or code_is_allowed()
    if not named_by_user and not _plugged_in(module):
        raise _not_allowed(what, name)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what} '{name}': {error}; name a function of a module that can be imported") from None
    # a plug-in may have imported something that runs what it is given: that is not the plug-in's own
    if not named_by_user and not _plugged_in(str(getattr(found, "__module__", ""))):
        raise _not_allowed(what, name)
    return found


def _not_allowed(what: str, name: str) -> InputError:
    return InputError(
        f"the recipe wants to run the {what} '{name}'; if you trust it, write its name on the command line (--set), or set "
        "POTSTILL_COMMANDS=allowed in the environment"
    )


def _plugged_in(module: str) -> bool:
    """Whether it lies in a folder that the user named for plug-ins. Nothing is imported to find out."""
    top = module.partition(".")[0]
    spec = sys.modules[top].__spec__ if top in sys.modules else PathFinder.find_spec(top)
    folders = [Path(one).resolve() for one in os.environ.get("POTSTILL_PLUGINS", "").split(os.pathsep) if one]
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    return any(folder in Path(spec.origin).resolve().parents for folder in folders)
