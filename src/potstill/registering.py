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

# a module of transformers, and those of ours whose `register()` is called once it is there
OURS = {
    "transformers.models.auto.configuration_auto": ("potstill.mlp_config",),
    "transformers.models.auto.modeling_auto": ("potstill.mlp_network",),
}


def register(theirs: str) -> None:
    for ours in OURS[theirs]:
        import_module(ours).register()


class AfterImport(MetaPathFinder):
    """Lets a module be imported as always, and registers when it is there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                register(fullname)

            spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec


def watch() -> None:
    """At once where transformers has them already."""
    for name in OURS:
        if name in sys.modules:
            register(name)
        elif not any(isinstance(one, AfterImport) and one.name == name for one in sys.meta_path):
            sys.meta_path.insert(0, AfterImport(name))
