"""The learning rates and the epochs of a stage if the recipe sets none: they depend on how the student is built.

Pre-trained weights need small steps. Random weights need steps about twenty times as large, and more epochs; weights from
which layers were removed are in between. So a builder may have a `pace`; the last builder that has one decides.

A pace is a guess. The rates around it are tried before a stage is trained (`runs/rate_search.py`), and few rows are read
again until the stage has a number of steps below which a student stays far from what it could learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from potstill.recipe import defaults, short_forms

if TYPE_CHECKING:
    from potstill.recipe.schema import Recipe, Stage


class Pace(NamedTuple):
    rate: float  # the learning rate of AdamW
    epochs: float
    steps: int  # at least

    @property
    def rates(self) -> list[float]:
        """The learning rates that are tried."""
        return [float(f"{factor * self.rate:.3g}") for factor in TRIED]


PACED = ("rate", "rates", "epochs", "min_steps")  # the fields that a pace sets; "auto" is another word for None there
TRIED = (0.5, 1.0, 2.0, 4.0)  # times the rate of the pace
FINE_TUNING = Pace(5e-5, 4.0, 750)
FROM_RANDOM_WEIGHTS = Pace(1e-3, 10.0, 3000)
OPTIMIZER = ("optimizer", "optimizer.name")  # ends of paths
OTHER_OPTIMIZERS = {"adadelta": 1.0, "sgd": 0.01}  # their learning rates do not depend on the student


def has_random_weights(builders: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the builders makes a network with random weights."""
    return any(short_forms.make_plugin("students", dict(table)).random_weights for table in builders)


def with_pace(recipe: Recipe) -> Recipe:
    """The recipe with rates, epochs and a least number of steps for every stage, unless a grid tries several students or
    optimizers, which may differ in them.

    A student that is still to be chosen leaves them open too.
    """
    tried = any({"student", "reshape"} & set(path.split(".")) or path.endswith(OPTIMIZER) for path in recipe.grid)
    if tried or recipe.chooses_student:
        return recipe
    stages, tables = [], [table for table in recipe.student if table["build"] != defaults.AUTO]
    for stage in recipe.stage:
        tables += stage.reshape
        builders = [short_forms.make_plugin("students", table) for table in reversed(tables)]
        pace = next((builder.pace for builder in builders if builder.pace), FINE_TUNING)
        stages.append(stage.model_copy(update=_paced(stage, pace)))
    return recipe.model_copy(update={"stage": stages})


def _paced(stage: Stage, pace: Pace) -> dict[str, Any]:
    """Rates are tried and steps are added only where the recipe does not say how fast and for how long the stage is trained."""
    optimizer = stage.optimizer
    searches = optimizer.rate is None and optimizer.name not in OTHER_OPTIMIZERS
    rates = optimizer.rates if optimizer.rates is not None else pace.rates if searches else []
    only = rates[0] if len(rates) == 1 else None
    rate = optimizer.rate or only or OTHER_OPTIMIZERS.get(optimizer.name, pace.rate)
    min_steps = stage.min_steps if stage.min_steps is not None else pace.steps if stage.epochs is None else 0
    return {
        "optimizer": optimizer.model_copy(update={"rate": rate, "rates": rates}),
        "epochs": stage.epochs or pace.epochs,
        "min_steps": min_steps,
    }
