"""What studies of lottery tickets share: rounds, controls, curves over steps, and whether two trainings are connected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potstill.api import InputError, Recipe
from potstill.measuring.run_folder import read_log, seed_folders, stage_folders
from potstill.recipe.schema import Stage
from potstill.recipe.short_forms import complete

QUIET = {"baseline": False, "timing": "none", "deploy": "none"}  # a ticket is not faster, and dense is its baseline
STEPS = 10  # of the line between two networks


def builder(name: str, **fields: Any) -> dict[str, Any]:
    """The builder's table with all of its fields, as a recipe that is read again has it."""
    return complete("students", [{"build": name, **fields}])[0]


def ticket_of(stage: Stage) -> dict[str, Any] | None:
    """The fields of the stage's builder `ticket`; None: it has none."""
    return next((fields for fields in stage.reshape if fields["build"] == "ticket"), None)


def rounds_of(recipe: Recipe, stage: Stage, rounds: int, name: str) -> Recipe:
    """The recipe with so many rounds of a stage: the network of the last one is its result."""
    stages = [stage.model_copy(update={"repeat": rounds})]
    return recipe.model_copy(update={"name": name, "stage": stages, **QUIET})


def followed_by(recipe: Recipe, name: str, **ticket: Any) -> Recipe:
    """The recipe with a further stage like its last one, which trains the ticket again, from the same early weights and in
    another order of the rows. `ticket`: other fields of the builder."""
    last = recipe.stage[-1]
    fields = ticket_of(last)
    if fields is None:
        raise InputError(
            'a study of tickets needs a stage that finds them; write reshape = [{ build = "ticket" }] there'
        )
    again = last.model_copy(update={"repeat": 1, "reshape": [fields | ticket]})
    return recipe.model_copy(update={"name": name, "stage": [*recipe.stage, again]})


@dataclass(frozen=True)
class Trials:
    """Dev scores in percent over the steps of a run's last stage, (seeds, times)."""

    steps: np.ndarray
    scores: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.scores.mean(0))

    def steps_to(self, score: float) -> list[float]:
        """The first step at which each seed is at least as good; infinite if it never is."""
        return [float(self.steps[row >= score][0]) if (row >= score).any() else np.inf for row in self.scores]


def trials_of(run: Path) -> Trials:
    """Read the logs of every seed. A seed whose training stopped earlier keeps its last score."""
    curves = [read_log(stage_folders(folder)[-1] / "epochs.csv", by="step")["dev"] for _, folder in seed_folders(run)]
    steps = np.asarray(max((steps for steps, _ in curves), key=len))
    rows = [scores + [scores[-1]] * (len(steps) - len(scores)) for _, scores in curves]
    return Trials(steps, 100 * np.asarray(rows))


def share_left(run: Path) -> float:
    """The share of the prunable weights that are not zero, in the student of the first seed."""
    from potstill.models.compression.held import prunes_output
    from potstill.models.compression.masks import prunable, share_of_zeros  # load torch
    from potstill.models.student import load_student

    student = load_student(seed_folders(run)[0][1] / "student")
    return 1 - share_of_zeros(prunable(student.model, prunes_output(student.model.config)))


def error_barriers(one: Path, other: Path) -> list[float]:
    """How much higher, in points, the error on dev is between two trainings than at their ends, for each seed.

    The highest error on the line between the weights minus the mean of the errors at both ends (Frankle et al., 2020,
    arXiv:1912.05671). About zero: both trainings ended in one basin, whichever the order of their rows.
    """
    from potstill.models.compression.tickets import set_between  # load torch
    from potstill.models.student import load_student
    from potstill.plugins.studies._scores import dev_score

    barriers = []
    for (_, first), (_, second) in zip(seed_folders(one), seed_folders(other), strict=True):
        between, *ends = (load_student(folder / "student") for folder in (first, first, second))
        errors = []
        score = dev_score(first)
        for step in range(STEPS + 1):
            set_between(between.model, ends[0].model, ends[1].model, step / STEPS)
            errors.append(100 * (1 - score(between)))
        barriers.append(barrier_of(errors))
    return barriers


def barrier_of(errors: Sequence[float]) -> float:
    """From the errors along a line between two networks, both ends included."""
    return max(errors) - (errors[0] + errors[-1]) / 2


def trained_on(recipe: Recipe, name: str) -> Stage:
    """The recipe's stage for a data set, on this alone: the first that is for all of them, or names it."""
    stage = next((stage for stage in recipe.stage if not stage.on or name in stage.on), None)
    if stage is None:
        raise InputError(f"no stage of the recipe is for the data set '{name}'; write a [[stage]] with on = ['{name}']")
    teacher = stage.teacher
    if isinstance(teacher, dict):
        teacher = {data: folder for data, folder in teacher.items() if data == name} or None
    return stage.model_copy(update={"on": [name], "teacher": teacher, "reshape": [], "repeat": 1, "rewind": None})


def ticket_rounds(sparsity: float, removes: float) -> int:
    """The rounds after which so many weights are removed, if each but the first removes a share of all of them."""
    rounds = round(sparsity / removes) if removes else 0
    if rounds < 1 or abs(rounds * removes - sparsity) > 1e-6:
        raise InputError(
            f"sparsity {sparsity:g} is no multiple of removes = {removes:g}; write removes = {sparsity / 7:.2g} or another part"
        )
    return rounds + 1
