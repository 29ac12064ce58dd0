"""Networks that are potstill's own become known to the Auto classes of transformers, when these are first imported.

`import potstill` imports neither transformers nor torch for it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OURS = ("potstill.perceptron",)  # each has `register()`
CONFIG = "transformers.models.auto.configuration_auto"


def register_ours() -> None:
    for name in OURS:
        import_module(name).register()


class AfterImport(MetaPathFinder):
    """Lets one module be imported as always, and acts when it is there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CONFIG:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                register_ours()

            spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """At once where transformers is there already."""
    if CONFIG in sys.modules:
        register_ours()
    elif not any(isinstance(one, AfterImport) for one in sys.meta_path):
        sys.meta_path.insert(0, AfterImport())
