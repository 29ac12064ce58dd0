"""potstill turns a language model that is too big into one that is small, fast and nearly as good, and proves it.

Public names are imported when they are first used, so that `import potstill` and `potstill --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potstill.models.architectures import registration

__version__ = "0.1.0"

if TYPE_CHECKING:
    from potstill.errors import InputError as InputError
    from potstill.errors import TrainingError as TrainingError
    from potstill.inference.predict import predict as predict
    from potstill.inference.translate import translate as translate
    from potstill.measuring.measure_models import measure_models as measure_models
    from potstill.models.student import Student as Student
    from potstill.models.student import load_student as load_student
    from potstill.models.student import save_student as save_student
    from potstill.recipe.resolve import resolve as resolve
    from potstill.recipe.schema import Recipe as Recipe
    from potstill.runs.distill import distill as distill
    from potstill.runs.distill import finetune as finetune

# a public name must not be the name of a module in this folder: importing the module would replace it
_MODULES = {
    "InputError": "errors",
    "Recipe": "recipe.schema",
    "Student": "models.student",
    "TrainingError": "errors",
    "distill": "runs.distill",
    "finetune": "runs.distill",
    "load_student": "models.student",
    "measure_models": "measuring.measure_models",
    "predict": "inference.predict",
    "resolve": "recipe.resolve",
    "save_student": "models.student",
    "translate": "inference.translate",
}
__all__ = sorted(_MODULES)

registration.register()  # transformers learns potstill's own networks when it is imported


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'potstill' has no attribute '{name}'")
    return getattr(import_module(f"potstill.{_MODULES[name]}"), name)
