"""A user's own function, by the name that a recipe gives it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from potstill.errors import InputError


def own_function(what: str, name: str, instead: str) -> Any:
    """The function "module:function". A recipe may come from a stranger, and the standard library runs what it is given:
    it is refused, with what to write `instead`."""
    module, colon, attribute = name.partition(":")
    if not colon or module.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(f"there is no {what} '{name}'; write {instead}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what} '{name}': {error}; name a function of a module that can be imported") from None
