"""Score other weights on the dev rows of a finished run. This module loads torch: import it inside a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from potstill.inference.answers import model_answers
from potstill.measuring.quality import labelled
from potstill.models.student import Student
from potstill.recipe.resolve import resolve
from potstill.runs.data_set import selection_metric
from potstill.runs.prepare import DataSets, make_accelerator
from potstill.system.display import Display
from potstill.system.paths import RunFolder


def dev_score(run: Path) -> Callable[[Student], float]:
    """Return a function that gives a student's score on dev of the last stage's first data set, by which epochs were chosen."""
    recipe = resolve(RunFolder(run).recipe).recipe
    accelerator = make_accelerator(recipe)
    data = DataSets(recipe, accelerator.device, Display(quiet=True)).of(recipe.stage[-1])[0]
    metric = selection_metric(recipe, data)

    def score(student: Student) -> float:
        source = data.for_scoring(data.dev, student.tokenizer)
        return data.task.score(*labelled(data.task, data.dev, model_answers(student, source)))[metric]

    return score
