"""How sparse can a ticket be and still match the dense network? The largest sparsity for each task (arXiv:2007.12223)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from potstill.api import Answer, InputError, Recipe, Section, Share, Study, StudyRun
from potstill.plugins.studies._tickets import (
    builder,
    error_barriers,
    followed_by,
    rounds_of,
    ticket_rounds,
    trained_on,
)
from potstill.reporting.svg import series_colour
from potstill.reporting.trials import TrialCurve, trial_curves

PAPER = {  # sparsity in percent, BERT-base, ticket: Chen et al., 2020, table 2
    "mnli": (70, 82.4, 82.6),
    "qqp": (90, 90.2, 90.0),
    "stsb": (50, 88.4, 88.2),
    "wnli": (90, 54.9, 54.9),
    "qnli": (70, 89.1, 88.9),
    "mrpc": (50, 85.2, 84.9),
    "rte": (60, 66.2, 66.0),
    "sst2": (60, 92.1, 91.9),
    "cola": (50, 54.5, 53.8),
    "squad": (40, 88.1, 87.7),
    "mlm": (70, 63.5, 63.2),
}


@dataclass(frozen=True)
class Tickets(Study):
    """The recipe's data sets are the tasks; the first of its stages that is for a task says how it is trained. The task's
    head goes on as it was trained in each round, and is not rewound.

    removes: the share of all weights that is removed before each round but the first.
    most: the largest sparsity.
    again: sparsities whose ticket is trained twice more with a new head, to see whether both trainings are connected.
    """

    removes: Share = 0.1
    most: Share = 0.9
    again: list[Share] = field(default_factory=lambda: [0.7])

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        rounds, recipes = ticket_rounds(self.most, self.removes), {}
        twice = {ticket_rounds(sparsity, self.removes) for sparsity in self.again}
        if max(twice, default=1) > rounds:
            raise InputError(f"study tickets: again names more than most = {self.most:g}; write smaller sparsities")
        ticket = builder("ticket", removes=self.removes, of="all", head="trained")
        for data in recipe.data:
            stage = trained_on(recipe, data.name).model_copy(update={"reshape": [ticket]})
            alone = recipe.model_copy(update={"data": [data], "stage": [stage]})
            for number in range(rounds, 0, -1):  # the most rounds first: the others read their results
                name = _name(data.name, self.removes * (number - 1))
                recipes[name] = rounds_of(alone, stage, number, name)
                if number in twice:
                    once = followed_by(recipes[name], f"{name}-once", head="fresh")
                    recipes |= {f"{name}-once": once, f"{name}-twice": followed_by(once, f"{name}-twice")}
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        tasks = list(dict.fromkeys(name.rpartition("@")[0] for name in runs))
        rounds = ticket_rounds(self.most, self.removes)
        sparsities = [round(self.removes * number, 6) for number in range(rounds)]
        rows, scores, curves = [], [], []
        for place, task in enumerate(tasks):
            of_task = {sparsity: runs[_name(task, sparsity)] for sparsity in sparsities}
            found = {sparsity: run.score() for sparsity, run in of_task.items()}
            known = {sparsity: score for sparsity, score in found.items() if score is not None}
            dense = known[0.0]
            rows.append([task, of_task[0.0].score_text()])
            for bar in (dense[0] - dense[1], dense[0]):
                best = largest_matching({sparsity: mean for sparsity, (mean, _) in known.items()}, bar)
                rows[-1] += [f"{100 * best:g} %", of_task[best].score_text()]
            rows[-1] += paper_cells(task, next(iter(of_task[0.0].measurements.tasks.values())))
            for sparsity, run in of_task.items():
                name = _name(task, sparsity)
                cells = [task, f"{100 * sparsity:g} %", run.score_text(), "", ""]
                if f"{name}-once" in runs:
                    barriers = error_barriers(runs[f"{name}-once"].folder, runs[f"{name}-twice"].folder)
                    cells[3:] = [runs[f"{name}-once"].score_text(), f"{np.mean(barriers):.1f}"]
                scores.append(cells)
            means, deviations = zip(*known.values(), strict=True)
            low, high = np.subtract(means, deviations).tolist(), np.add(means, deviations).tolist()
            curves.append(TrialCurve(task, [100 * s for s in known], list(means), low, high, series_colour(place)))
        seeds = next(iter(runs.values())).measurements.seeds
        sentences = [
            "Matching: the mean over seeds is at least that of the dense network minus its deviation over seeds, or at least "
            "that of the dense network. The table has the largest sparsity at which that holds.",
            "Sparsity is that of all matrices of the layers and the pooler; embeddings and head are dense.",
            "Barrier: by how many points the error on dev rises on the line between two trainings of the ticket with a new head "
            "that differ in the order of the rows.",
        ]
        if len(seeds) < 2:
            sentences.append("With one seed there is no deviation, and both definitions are the same: write --seeds 3.")
        header = ["task", "dense", "within a deviation", "its score", "at least the mean", "its score"]
        header += ["the paper: sparsity", "BERT-base", "ticket"]
        figure = trial_curves("tickets", "Score by sparsity, mean ± deviation", "score", curves, "sparsity, percent")
        section = Section("Every sparsity", ["task", "sparsity", "score", "with a new head", "barrier"], scores)
        return Answer("Matching tickets", sentences, header, rows, figure, [section])


def largest_matching(means: Mapping[float, float], bar: float) -> float:
    """The largest sparsity whose mean score is at least `bar`; zero, the dense network, always is."""
    return max(sparsity for sparsity, mean in means.items() if sparsity == 0 or mean >= bar)


def paper_cells(name: str, task: str) -> list[str]:
    """The paper's sparsity, dense score and ticket's score of a data set with such a name, or of masked words."""
    key = "mlm" if task == "mask" else re.sub(r"[^a-z0-9]", "", name.lower())
    row = next((row for start, row in PAPER.items() if key.startswith(start)), None)
    return ["", "", ""] if row is None else [f"{row[0]} %", f"{row[1]:.1f}", f"{row[2]:.1f}"]


def _name(task: str, sparsity: float) -> str:
    return f"{task}@{round(100 * sparsity, 2):g}"
