"""The data sets of a recipe as its first stage gets them."""

from __future__ import annotations

import torch

from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet
from potstill.runs.prepare import DataSets
from potstill.system.display import Display


def prepared_sets(recipe: Recipe, show: Display | None = None) -> DataSets:
    return DataSets(recipe, torch.device("cpu"), show or Display(quiet=True))


def prepared_data(recipe: Recipe, show: Display | None = None) -> list[DataSet]:
    return prepared_sets(recipe, show).of(recipe.stage[0])
