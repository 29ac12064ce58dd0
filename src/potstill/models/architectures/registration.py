"""Make transformers' Auto classes know potstill's own networks, whichever of the two packages is imported first.

`import potstill` must be quick, so it may import neither transformers nor torch. When transformers looks up a type that
begins with PREFIX, every file of this folder is imported, and its networks register themselves (`OwnModel`); those of a
stock architecture with other shapes are made then (`reshaped`). Without potstill, transformers refuses a folder of such a
network: its type is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

PREFIX = "potstill-"  # of every model_type that needs potstill
AUTO_CONFIG = "transformers.models.auto.configuration_auto"


class _MoreTypes(dict[str, Any]):
    """The configs that AutoConfig knows beside those of transformers, by model_type."""

    def __contains__(self, model_type: object) -> bool:
        if str(model_type).startswith(PREFIX) and not super().__contains__(model_type):
            for file in iter_modules(import_module(__package__).__path__):
                import_module(f"{__package__}.{file.name}")
            if not super().__contains__(model_type):
                import_module(f"{__package__}.reshaped").register_type(str(model_type).removeprefix(PREFIX))
        return super().__contains__(model_type)


def _extend(auto: Any) -> None:
    auto.CONFIG_MAPPING._extra_content = _MoreTypes(auto.CONFIG_MAPPING._extra_content)


class _Hook(MetaPathFinder):
    """Let Python find the module of AutoConfig as usual, and extend it after it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == AUTO_CONFIG else None
        if spec is None or spec.loader is None:  # every other import of the process
            return None
        run = spec.loader.exec_module

        def run_and_extend(module: ModuleType) -> None:
            run(module)
            _extend(module)

        spec.loader.exec_module = run_and_extend  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Extend AutoConfig at once if transformers has loaded it already, else when it is imported."""
    if AUTO_CONFIG in sys.modules:
        _extend(sys.modules[AUTO_CONFIG])
    else:
        sys.meta_path.insert(0, _Hook())
