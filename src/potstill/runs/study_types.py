"""Questions that several runs answer together. One file is one study; its name is the word that users type.

A study is a frozen dataclass with `runs(recipe)`, the recipes it needs by name, and `answer(found)`, what they say
together: a table, a figure, and sentences that claim no more than was shown. One that tries what may fail has
`may_diverge(name)` as well: a run of such a name whose numbers grow beyond all bounds is not among what was found.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from potstill.measuring.comparisons import Predictions, RunPredictions, read_predictions
from potstill.measuring.measurements import DEV, STUDENT, Measurements
from potstill.measuring.significance import Difference, contrast, correct_differences
from potstill.recipe.plugins import Plugin
from potstill.recipe.schema import Recipe
from potstill.reporting.numbers import points


@dataclass(frozen=True)
class Found:
    """One finished run of a study."""

    folder: Path
    measurements: Measurements

    def said(self, model: str = STUDENT) -> Predictions | None:
        """A model's answers on the first split that is quoted of the first data set."""
        data, split, _ = self.measurements.quoted()[0]
        return self._spoken.get((model, data, split))

    def score(self, model: str = STUDENT) -> tuple[float, float] | None:
        """Mean and deviation over seeds of the metric that is chosen by, on the same split; in percent."""
        place, measured = self.measurements.quoted()[0], self.measurements.models.get(model)
        if measured is None or (score := measured.score(place)) is None:
            return None
        return 100 * score, 100 * (measured.score_deviation(place) or 0.0)

    def parameters(self, model: str = STUDENT) -> float:
        """Return the number of parameters of a model; NaN where it is unknown."""
        count = self.measurements.models[model].parameters
        return math.nan if count is None else count

    @cached_property
    def _spoken(self) -> RunPredictions:
        return read_predictions(self.folder, self.measurements)


@dataclass(frozen=True)
class Part:
    """A further table of an answer, with a figure of its own or none."""

    title: str
    header: list[str]
    rows: list[list[str]]
    figure: str = ""  # SVG


@dataclass(frozen=True)
class Answer:
    title: str
    sentences: list[str]
    header: list[str]
    rows: list[list[str]]
    figure: str  # SVG
    parts: list[Part] = field(default_factory=list)


class Study(Plugin):
    """A question that several runs answer together, as a frozen dataclass."""

    plugin_kind = "studies"

    @abstractmethod
    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        """Return the recipes of the runs, by name."""

    def may_diverge(self, name: str) -> bool:
        """Return True if a run of this name may diverge; it is then not among the results."""
        return False

    @abstractmethod
    def answer(self, found: Mapping[str, Found]) -> Answer:
        """Return a table, a figure, and sentences that claim no more than was shown."""


def compared(ours: Sequence[Predictions | None], theirs: Sequence[Predictions | None]) -> Difference | None:
    """The mean of some runs against the mean of others, on the same rows; None where one side said nothing.

    Runs of different conditions are no seeds of each other: what seeds change is seen within each.
    """
    left, right = ([one for one in side if one is not None] for side in (ours, theirs))
    if not left or not right:
        return None
    return weighed([*((1 / len(left), one) for one in left), *((-1 / len(right), one) for one in right)])


def weighed(sides: Sequence[tuple[float, Predictions]]) -> Difference | None:
    """The sum of weight × a run's mean over seeds, on the same rows; None on dev, which was chosen by."""
    if any(said.split == DEV for _, said in sides):
        return None
    return contrast([(weight, said.scores()) for weight, said in sides], len(sides[0][1].targets))


def told_together(found: Mapping[str, Difference | None]) -> dict[str, Difference]:
    """What was tested, with p corrected for the number of comparisons in one answer."""
    tested = {words: one for words, one in found.items() if one is not None}
    return dict(zip(tested, correct_differences(list(tested.values())), strict=True))


def how_tested(found: Mapping[str, Difference]) -> list[str]:
    """What stands below the comparisons of an answer."""
    if not found:
        return [
            "Nothing was tested: dev was chosen by, and there is no test set on which two runs answered the same rows."
        ]
    return [f"Each p is corrected for {len(found)} comparisons (Holm); intervals are each one's own."][: len(found) - 1]


def in_points(one: Difference) -> str:
    """+1.0 points, −0.1 to +2.0"""
    return f"{points(one.mean)} points, {points(one.low)} to {points(one.high)}"


def shown(score: tuple[float, float] | None) -> str:
    """86.2 ± 0.8"""
    return "–" if score is None else f"{score[0]:.1f}" + (f" ± {score[1]:.1f}" if score[1] else "")
