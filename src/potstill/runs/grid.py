"""Train every cell of a recipe's grid, and keep the one that is best on dev. Test is not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe, fingerprint
from potstill.runs.stage_setup import Run
from potstill.runs.stages import Trained, train_student
from potstill.system import ranks
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder

PREPARED_ONCE = {"teacher", "data", "length", "device", "precision", "memory", "metric", "seeds", "timing"}


@dataclass(frozen=True)
class BestCell:
    student: Trained
    recipe: Recipe
    tried: list[dict[str, Any]] = field(default_factory=list)  # values and dev score of every cell, the best first


def best_of_grid(run: Run, start_at: Path | None = None) -> BestCell:
    """Train the recipe, or every cell of its grid.

    All cells share the teacher's memory. A finished cell is not trained again, and only the best cell keeps its weights.
    """
    if not run.recipe.grid:
        return BestCell(train_student(run, start_at), run.recipe)
    refuse_shared_fields(run.recipe)
    cells = grid_recipes(run.recipe)
    grid = RunFolder(run.folder).grid
    runs = [
        replace(run, recipe=recipe, folder=grid / f"{number:04d}-{fingerprint(recipe)}")
        for number, (_, recipe) in enumerate(cells)
    ]
    scores = finished_cells([cell.folder for cell in runs])
    for number, (values, _) in enumerate(cells):
        if number in scores:
            continue
        settings = ", ".join(f"{path} = {value}" for path, value in values.items())
        run.display.say(f"cell {number + 1} of {len(cells)}: {settings}")
        scores[number] = train_student(runs[number]).dev
        if ranks.is_first():
            # the score of the new best cell is written before the weights of the old one are removed
            note = json.dumps({"dev": scores[number], **values}).encode()
            write_atomically(runs[number].folder / "cell.json", note)
            for other in scores.keys() - {best_of(scores)}:
                shutil.rmtree(runs[other].folder / "finished", ignore_errors=True)
    ranks.wait()
    best = best_of(scores)
    tried = [{**cells[number][0], "dev": dev} for number, dev in scores.items()]
    return BestCell(train_student(runs[best]), cells[best][1], sorted(tried, key=lambda cell: -float(cell["dev"])))


def best_of(scores: dict[int, float]) -> int:
    """The cell with the highest score, the first one of equal cells."""
    return max(sorted(scores), key=scores.__getitem__)


@ranks.on_first
def finished_cells(folders: Sequence[Path]) -> dict[int, float]:
    """The dev scores of the cells that were finished before, by their number."""
    notes = {number: folder / "cell.json" for number, folder in enumerate(folders)}
    return {number: float(json.loads(note.read_text())["dev"]) for number, note in notes.items() if note.exists()}


def refuse_shared_fields(recipe: Recipe) -> None:
    for path in recipe.grid:
        if path.split(".")[0] in PREPARED_ONCE:
            problem = f"all cells of a grid share their rows and teacher, so '{path}' cannot vary"
            raise InputError(f"{problem}; make a run for each value")
