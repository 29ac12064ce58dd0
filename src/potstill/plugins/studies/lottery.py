"""Do winning tickets learn as fast and as well as the dense network? Tickets beside controls (arXiv:1803.03635)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from potstill.api import Answer, Count, Field, InputError, Recipe, Share, Study, StudyRun
from potstill.measuring.comparisons import Predictions
from potstill.plugins.studies._differences import corrected, differences_text, mean_difference
from potstill.plugins.studies._tickets import (
    Trials,
    error_barriers,
    followed_by,
    rounds_of,
    share_left,
    ticket_of,
    trials_of,
)
from potstill.reporting.svg import COLOURS
from potstill.reporting.trials import TrialCurve, trial_curves

CONTROLS = {"random_weights": ("random weights", "--"), "random_structure": ("random structure", ":")}


@dataclass(frozen=True)
class Lottery(Study):
    """Tickets of several rounds of a stage with the builder `ticket`, each trained twice, and controls.

    rounds: whose tickets are shown; 1 is the dense network.
    controls: the rounds of which are also trained the same mask with random weights and a random structure.
    near: share of the dense network's best mean dev score; how many steps a network needs to reach it is counted.
    """

    rounds: Annotated[list[Count], Field(min_length=2)] = field(default_factory=lambda: [1, 4, 8, 13, 16, 19])
    controls: list[Count] = field(default_factory=lambda: [8, 13])
    near: Share = 0.995

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        ticket = ticket_of(recipe.stage[0])
        if len(recipe.stage) > 1 or ticket is None:
            raise InputError(
                'study lottery needs one stage that finds tickets; write reshape = [{ build = "ticket" }] there'
            )
        if ticket.get("head") == "trained":  # two trainings of a ticket would begin with two heads
            raise InputError('study lottery trains tickets twice from one start; write head = "rewound" or "fresh"')
        if 1 not in self.rounds or not set(self.controls) <= set(self.rounds) - {1}:
            raise InputError(
                "study lottery compares rounds with round 1, the dense network, and has controls of later ones; "
                "write for example --with 'rounds=[1, 4, 8]' --with 'controls=[8]'"
            )
        recipes = {}
        # the most rounds first: the others, and all that follow a round, find its result
        for number in sorted(self.rounds, reverse=True):
            name = f"round-{number}"
            recipes[name] = rounds_of(recipe, recipe.stage[0], number, name)
            recipes[f"{name}-again"] = followed_by(recipes[name], f"{name}-again")
            for control in CONTROLS if number in self.controls else ():
                recipes[f"{name}-{control}"] = followed_by(recipes[name], f"{name}-{control}", control=control)
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        dense = runs["round-1"]
        trials = {name: trials_of(run.folder) for name, run in runs.items() if not name.endswith("-again")}
        bar = self.near * float(trials["round-1"].mean.max())
        rows, curves, questions = [], [], {}
        for place, number in enumerate(sorted(self.rounds)):
            name, colour = f"round-{number}", COLOURS[place % len(COLOURS)]
            left = f"{100 * share_left(runs[name].folder):.1f} %"
            barriers = error_barriers(runs[name].folder, runs[f"{name}-again"].folder)
            cells = [left, runs[name].score_text(), _steps_text(trials[name], bar)]
            controls = []
            curves.append(_curve(left, trials[name], colour))
            if number > 1:
                questions[f"Ticket of {left} instead of the dense network"] = _sides(runs[name], dense)
            for control, (title, style) in CONTROLS.items():
                if (other := runs.get(f"{name}-{control}")) is None:
                    controls += ["", ""]
                    continue
                controls += [other.score_text(), _steps_text(trials[f"{name}-{control}"], bar)]
                curves.append(_curve(f"{left}, {title}", trials[f"{name}-{control}"], colour, style))
                questions[f"{title} instead of the ticket of {left}".capitalize()] = _sides(other, runs[name])
            rows.append([*cells, f"{np.mean(barriers):.1f}", *controls])
        differences = corrected({question: mean_difference(*sides) for question, sides in questions.items()})
        header = ["weights left", "ticket", "steps", "barrier", "random weights", "steps", "random structure", "steps"]
        sentences = [
            f"Steps: the first at which dev is at least {bar:.2f}, {100 * self.near:g} % of the dense network's best mean; "
            f"the mean of {len(trials['round-1'].scores)} trials.",
            "Barrier: by how many points the error on dev rises on the line between two trainings of the ticket that differ "
            "in the order of the rows.",
            *differences_text(differences),
        ]
        figure = trial_curves("lottery", "Dev by step: mean and range of the trials", "dev, percent", curves)
        return Answer("Lottery tickets", sentences, header, rows, figure)


def _sides(ours: StudyRun, theirs: StudyRun) -> tuple[list[Predictions | None], list[Predictions | None]]:
    return [ours.predictions()], [theirs.predictions()]


def _steps_text(trials: Trials, bar: float) -> str:
    """The mean over the trials, or how many of them never arrive."""
    steps = np.asarray(trials.steps_to(bar))
    missing = int(np.isinf(steps).sum())
    return f"{steps.mean():,.0f}" if not missing else f"{missing} of {len(steps)} never"


def _curve(name: str, trials: Trials, colour: str, style: str = "-") -> TrialCurve:
    low, high = trials.scores.min(0).tolist(), trials.scores.max(0).tolist()
    return TrialCurve(name, trials.steps.tolist(), trials.mean.tolist(), low, high, colour, style)
