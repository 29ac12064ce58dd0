"""Make transformers' Auto classes know potstill's own networks, whichever of the two packages is imported first.

`import potstill` must be quick, so it may import neither transformers nor torch. Modules of transformers that are
loaded already are extended at once; the others when they are imported: an import hook waits for these two names and
ignores every other import. Without potstill, transformers refuses a folder of such a network: its type is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

PREFIX = "potstill-"  # of every model_type that needs potstill


def add_configs(auto: Any) -> None:
    """Register every config of `configs.py`; `auto` is transformers' configuration_auto."""
    for config in _classes("configs"):
        if vars(config).get("model_type", "").startswith(PREFIX):
            auto.AutoConfig.register(config.model_type, config, exist_ok=True)


def add_models(auto: Any) -> None:
    """Register every network of this folder by the end of its name; `auto` is transformers' modeling_auto."""
    from potstill.models.architectures.own_model import OwnModel

    for module in iter_modules(import_module(__package__).__path__):
        for model in _classes(module.name):
            if not issubclass(model, OwnModel) or model.config_class is None:  # a base class has no config
                continue
            _, has_head, head = model.__name__.partition("For")
            if has_head:
                getattr(auto, f"AutoModelFor{head}").register(model.config_class, model, exist_ok=True)
            elif model.__name__.endswith("Model") and not model.__name__.endswith("PreTrainedModel"):
                auto.AutoModel.register(model.config_class, model, exist_ok=True)
            if head == "SequenceClassification":  # pipelines refuse a model whose name is not listed here
                auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[model.config_class.model_type] = model.__name__


def _classes(module: str) -> Iterator[Any]:
    """Yield the classes that a module of this folder defines."""
    name = f"{__package__}.{module}"
    for value in list(vars(import_module(name)).values()):
        if isinstance(value, type) and value.__module__ == name:
            yield value


HOOKS: dict[str, Callable[[Any], None]] = {
    "transformers.models.auto.configuration_auto": add_configs,
    "transformers.models.auto.modeling_auto": add_models,
}


class _Hook(MetaPathFinder):
    """Let Python find the two modules as usual, and extend each after it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        extend = HOOKS.get(name)
        if extend is None:  # every other import of the process
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_extend(module: ModuleType) -> None:
            run(module)
            extend(module)

        spec.loader.exec_module = run_and_extend  # type: ignore[method-assign]
        return spec


def register() -> None:
    if not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())
        for name, extend in HOOKS.items():
            if name in sys.modules:
                extend(sys.modules[name])
