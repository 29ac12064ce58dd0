"""Cells: a recipe with several seeds or a grid is a list of them, and any process may train each by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from potstill.errors import InputError
from potstill.recipe.explain import as_toml, did_you_mean
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import MEASURED, Recipe, fingerprint

ALONE = "."  # the name of the only cell of a recipe with one seed and without a grid


@dataclass(frozen=True)
class Cell:
    """A recipe with one seed and without a grid."""

    name: str  # its folder below that of the run, such as seed-1 or grid/0003-0a1b2c3d4e5f6071
    recipe: Recipe
    values: dict[str, Any] = field(default_factory=dict)  # what the grid sets

    @property
    def title(self) -> str:
        settings = ", ".join(f"{path} = {as_toml(value)}" for path, value in self.values.items())
        return settings or f"seed {self.recipe.seed}"


def seed_cells(recipe: Recipe) -> list[Cell]:
    """A recipe for each seed; it may still have a grid."""
    if recipe.seeds == 1:
        return [Cell(ALONE, recipe)]
    seeds = range(recipe.seed, recipe.seed + recipe.seeds)
    return [Cell(f"seed-{seed}", recipe.model_copy(update={"seed": seed, "seeds": 1})) for seed in seeds]


def grid_cells(recipe: Recipe) -> list[Cell]:
    """The points of the grid of a recipe with one seed."""
    # what a run measures is no part of the name: `potstill cells` does not measure
    open_fields = dict.fromkeys(MEASURED, "auto")
    return [
        Cell(f"grid/{number:04d}-{fingerprint(point.model_copy(update=open_fields))}", point, values)
        for number, (values, point) in enumerate(grid_recipes(recipe))
    ]


def all_cells(recipe: Recipe) -> list[Cell]:
    """Every training that the recipe asks for: each point of the grid with each seed."""
    every = []
    for of_seed in seed_cells(recipe):
        for point in grid_cells(of_seed.recipe) if recipe.grid else [Cell(ALONE, of_seed.recipe)]:
            parts = [name for name in (of_seed.name, point.name) if name != ALONE]
            every.append(Cell("/".join(parts) or ALONE, point.recipe, point.values))
    return every


def cell_named(cells: list[Cell], name: str) -> Cell:
    """The cell of this name."""
    named = {cell.name: cell for cell in cells}
    if name not in named:
        raise InputError(f"the recipe has no cell '{name}'{did_you_mean(name, named)}")
    return named[name]
