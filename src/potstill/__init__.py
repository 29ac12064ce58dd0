"""potstill turns a language model that is too big into one that is small, fast and nearly as good, and proves it.

The public names are loaded when first used, so that `import potstill` and `potstill --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potstill import registered

__version__ = "0.1.0"

if TYPE_CHECKING:
    from potstill.errors import InputError, TrainingError
    from potstill.predicting import measure_models, predict
    from potstill.recipe import Recipe, resolve
    from potstill.run import distill, finetune
    from potstill.students import Student, load_student, save_student

# a public name must not be a module's: importing that module would put it in the name's place
_WHERE = {
    "InputError": "errors",
    "Recipe": "recipe",
    "Student": "students",
    "TrainingError": "errors",
    "distill": "run",
    "finetune": "run",
    "load_student": "students",
    "measure_models": "predicting",
    "predict": "predicting",
    "resolve": "recipe",
    "save_student": "students",
}
__all__ = [
    "InputError",
    "Recipe",
    "Student",
    "TrainingError",
    "distill",
    "finetune",
    "load_student",
    "measure_models",
    "predict",
    "resolve",
    "save_student",
]


registered.watch()


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'potstill' has no attribute '{name}'")
    return getattr(import_module(f"potstill.{_WHERE[name]}"), name)
