"""Check files and models before torch is loaded, with the functions that open them later."""

from __future__ import annotations

from potstill.data.sources import locate
from potstill.models.folders import model_folder, onnx_file
from potstill.recipe.schema import Recipe


def check_rows(source: str | None) -> None:
    """Refuse rows that are missing; a name on the hub is not looked up."""
    if source is not None:
        locate(source)


def check_model(model: str) -> None:
    """Refuse a model that is missing; a name on the hub is looked up, and downloaded."""
    if onnx_file(model) is None:
        model_folder(model)


def check_recipe(recipe: Recipe, with_models: bool = True) -> None:
    """Refuse a recipe whose rows or models are missing."""
    for data in recipe.data:
        for source in (data.train, data.dev, data.unlabelled, *data.test.values()):
            check_rows(source)
    if not with_models:
        return
    for model in {data.teacher or recipe.teacher for data in recipe.data} | {recipe.start}:
        if model:
            check_model(model)
