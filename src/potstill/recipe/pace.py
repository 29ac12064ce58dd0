"""The learning rate and the epochs of a stage if the recipe sets none: they depend on how the student is built.

Pre-trained weights need small steps. Random weights need steps about twenty times as large, and more epochs; weights from
which layers were removed are in between. So a builder may have a `pace`; the last builder that has one decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from potstill.recipe import defaults, short_forms

if TYPE_CHECKING:
    from potstill.recipe.schema import Recipe


class Pace(NamedTuple):
    rate: float  # the learning rate of AdamW
    epochs: float


AUTO = ("rate", "epochs")  # the fields that a pace sets; "auto" is another word for None there
FINE_TUNING = Pace(5e-5, 4.0)
FROM_RANDOM_WEIGHTS = Pace(1e-3, 10.0)
OTHER_OPTIMIZERS = {"adadelta": 1.0, "sgd": 0.01}  # their learning rates do not depend on the student


def has_random_weights(builders: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the builders makes a network with random weights."""
    return any(short_forms.make_plugin("students", dict(table)).random_weights for table in builders)


def with_pace(recipe: Recipe) -> Recipe:
    """The recipe with a rate and epochs for every stage, unless a grid tries several students, which may differ in them.

    A student that is still to be chosen leaves them open too.
    """
    if any({"student", "reshape"} & set(path.split(".")) for path in recipe.grid) or recipe.chooses_student:
        return recipe
    stages, tables = [], [table for table in recipe.student if table["build"] != defaults.AUTO]
    for stage in recipe.stage:
        tables += stage.reshape
        builders = [short_forms.make_plugin("students", table) for table in reversed(tables)]
        pace = next((builder.pace for builder in builders if builder.pace), FINE_TUNING)
        optimizer = stage.optimizer
        rate = optimizer.rate or OTHER_OPTIMIZERS.get(optimizer.name, pace.rate)
        chosen = {"optimizer": optimizer.model_copy(update={"rate": rate}), "epochs": stage.epochs or pace.epochs}
        stages.append(stage.model_copy(update=chosen))
    return recipe.model_copy(update={"stage": stages})
