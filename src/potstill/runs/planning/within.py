"""How many epochs fit into a given time: a schedule over the steps that `plan` estimates, not over the clock.

The number is written into the run's recipe, so that a stopped run goes on with it, and another machine can repeat it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path

from potstill.errors import InputError
from potstill.recipe.schema import Recipe
from potstill.runs.planning.plan import plan
from potstill.runs.rate_search import LEAST_STEPS, search_steps
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.paths import RunFolder, output_path
from potstill.system.terminal import duration

LEAST = 0.001  # of an epoch


@ranks.on_first
def epochs_within(recipe: Recipe, out: str | Path, seconds: float, overwrite: bool, display: Display) -> float:
    """The epochs of the last stage; those of the run in `out`, if one was begun there."""
    begun = RunFolder(output_path(out))
    if begun.mark.exists() and not overwrite:
        return float(tomllib.loads(begun.recipe.read_text(encoding="utf-8"))["stage"][-1]["epochs"])
    stage = recipe.stage[-1].model_copy(update={"epochs": 1.0, "min_steps": 0})
    found = plan(recipe.model_copy(update={"stage": [*recipe.stage[:-1], stage]}), out)
    by_title = {line["what"]: line["seconds"] for line in found["lines"]}
    trained = [line for line in found["lines"] if line["what"].startswith("train ")]
    training = sum(line["seconds"] for line in trained)
    trials = sum(spent for title, spent in by_title.items() if title.startswith("find the rate"))
    scoring = by_title["score dev"]
    left = seconds - (found["seconds"] - training - trials - scoring)
    steps = sum(line["steps"] for line in trained) / sum(line["runs"] for line in trained)
    epochs = epochs_with_trials(left, training, scoring, steps, stage.optimizer.rates or [])
    if epochs < LEAST:
        least = f"{duration(found['seconds'])} with one epoch"
        raise InputError(f"--within {duration(seconds)}: the run would take {least}; give more time, or fewer rows")
    display.say(f"{epochs:g} epochs, which take {duration(seconds)} here")
    return epochs


def epochs_with_trials(seconds: float, training: float, scoring: float, steps: float, rates: Sequence[float]) -> float:
    """Epochs of so many steps that fit beside the trials of learning rates, which only a stage of enough steps begins with."""
    many = LEAST_STEPS * 1000
    share = search_steps(rates, many) / many
    epochs = epochs_in(seconds, training * (1 + share), scoring)
    if not share or epochs * steps >= LEAST_STEPS:
        return epochs
    most = math.floor((LEAST_STEPS - 1) / steps / LEAST) * LEAST
    return min(epochs_in(seconds, training, scoring), most)


def epochs_in(seconds: float, training: float, scoring: float) -> float:
    """Epochs of so many seconds each that fit; dev is scored at the end of each, and at the end of a part of one."""
    whole = math.floor(max(seconds, 0.0) / (training + scoring))
    part = (seconds - whole * (training + scoring) - scoring) / training
    return math.floor((whole + min(max(part, 0.0), 1.0)) / LEAST) * LEAST if whole or part > 0 else 0.0
