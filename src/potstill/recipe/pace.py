"""The learning rate and the epochs of a stage where nobody chose them: they follow from what the student is made of.

Weights that were trained before are moved by small steps. A network with random weights needs steps some twenty times as
large, and more epochs; of one from which layers were taken away the same is true, to a lesser degree. So a builder may
have a `pace`; of several the last that has one decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from potstill.recipe import short_forms

if TYPE_CHECKING:
    from potstill.recipe.schema import Recipe


class Pace(NamedTuple):
    rate: float  # the learning rate of AdamW
    epochs: float


AUTO = ("rate", "epochs")  # fields of recipes that this file is about
FINE_TUNING = Pace(5e-5, 4.0)
FROM_RANDOM_WEIGHTS = Pace(1e-3, 10.0)
OTHER_OPTIMIZERS = {"adadelta": 1.0, "sgd": 0.01}  # their rates are of other sizes, whatever the student is


def pace_of(builders: Sequence[Mapping[str, Any]]) -> Pace:
    """Of a student that these builders make, one after the other; without any it is fine-tuned as it is."""
    made = [short_forms.made("students", dict(fields)) for fields in builders]
    return next((builder.pace for builder in reversed(made) if builder.pace), FINE_TUNING)


def draws_weights(builders: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the builders makes a network with random weights, which has one pace whatever its fields are."""
    made = [short_forms.made("students", dict(fields)) for fields in builders]
    return any(builder.random_weights for builder in made)


def paced(recipe: Recipe) -> Recipe:
    """The recipe with a rate and epochs for every stage. Where a grid tries several students, each cell chooses its own."""
    if any({"student", "reshape"} & set(path.split(".")) for path in recipe.grid):
        return recipe
    stages, builders = [], list(recipe.student)
    for stage in recipe.stage:
        builders += stage.reshape
        pace, settings = pace_of(builders), stage.optimizer
        rate = settings.rate or OTHER_OPTIMIZERS.get(settings.name, pace.rate)
        chosen = {"optimizer": settings.model_copy(update={"rate": rate}), "epochs": stage.epochs or pace.epochs}
        stages.append(stage.model_copy(update=chosen))
    return recipe.model_copy(update={"stage": stages})
