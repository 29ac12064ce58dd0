"""Load a user's function by its name "module:function", if the user allowed it.

A recipe may come from a stranger, and functions of installed modules can run whatever they are given. So a name in a
recipe's file is not enough. The user allows a function by writing its name on the command line, by keeping its module in
a folder of POTSTILL_PLUGINS, or by setting POTSTILL_COMMANDS=allowed, which shell commands need as well.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.recipe.plugins import user_folders

_COMMAND_LINE: set[str] = set()  # texts of this process's command line


def trust_command_line(value: Any) -> None:
    """Remember every text in a value of the command line: functions that the user named there may run."""
    if isinstance(value, str):
        _COMMAND_LINE.add(value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        trust_command_line(item)


def code_is_allowed() -> bool:
    return os.environ.get("POTSTILL_COMMANDS") == "allowed"


def user_function(purpose: str, name: str, instead: str) -> Any:
    """Import "module:function". Errors name its `purpose` and end with what to write `instead`.

    Functions of the standard library are always refused: some of them run their arguments.
    """
    module, colon, attribute = name.partition(":")
    if not colon or module.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(f"there is no {purpose} '{name}'; write {instead}")
    named_by_user = name in _COMMAND_LINE or code_is_allowed()
    if named_by_user or _is_plugged_in(module):
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise InputError(f"{purpose} '{name}': {error}; name a function of a module that can be imported") from None
        # a plug-in may import a function that runs its arguments: only functions defined in a plug-in are allowed
        if named_by_user or _is_plugged_in(str(getattr(function, "__module__", ""))):
            return function
    raise InputError(
        f"the recipe wants to run the {purpose} '{name}'; if you trust it, write its name on the command line (--set), "
        "or set POTSTILL_COMMANDS=allowed in the environment"
    )


def _is_plugged_in(module: str) -> bool:
    """Whether a module is in a folder of POTSTILL_PLUGINS. Imports nothing."""
    top = module.partition(".")[0]
    spec = sys.modules[top].__spec__ if top in sys.modules else PathFinder.find_spec(top)
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    return any(folder in Path(spec.origin).resolve().parents for folder in user_folders())
