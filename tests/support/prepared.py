"""The data sets of a recipe as its first stage gets them, and the results of stages that runs share."""

from __future__ import annotations

import shutil

import torch

from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet
from potstill.runs.prepare import DataSets
from potstill.system import paths
from potstill.system.display import Display


def prepared_sets(recipe: Recipe, show: Display | None = None) -> DataSets:
    return DataSets(recipe, torch.device("cpu"), show or Display(quiet=True))


def prepared_data(recipe: Recipe, show: Display | None = None) -> list[DataSet]:
    return prepared_sets(recipe, show).of(recipe.stage[0])


def forget_stages() -> None:
    """Before a run that is compared with an earlier one: else it would read the result of the earlier one."""
    shutil.rmtree(paths.cache() / "stages", ignore_errors=True)
