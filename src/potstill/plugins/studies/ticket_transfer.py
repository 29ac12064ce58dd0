"""Which tickets transfer? The mask of each task trained on each other task, beside its own (arXiv:2007.12223)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from potstill.api import Answer, InputError, Recipe, Section, Share, Study, StudyRun
from potstill.measuring.run_folder import read_log, seed_folders
from potstill.plugins.studies._tickets import QUIET, builder, ticket_rounds, trained_on
from potstill.plugins.studies._transfer import Transfer
from potstill.reporting.heat_maps import difference_map
from potstill.system.paths import RunFolder
from potstill.tasks.metrics.labels import spearman

FIRST_WEIGHTS, DENSE = "first-weights", "dense"  # sources that are no task: the magnitudes of θ₀, and no mask
TO = "-to-"


@dataclass(frozen=True)
class TicketTransfer(Study):
    """The recipe's data sets are the tasks; the first of its stages that is for a task says how it is trained.

    sources: the tasks whose masks are tried; empty: all.
    targets: the tasks on which they are trained; empty: all sources.
    sparsity: of every mask.
    removes: the share of all weights that is removed before each round of the search for a mask.
    """

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    sparsity: Share = 0.7
    removes: Share = 0.1

    def tasks(self, recipe: Recipe) -> tuple[list[str], list[str]]:
        names = [data.name for data in recipe.data]
        sources = self.sources or names
        targets = self.targets or sources
        if unknown := [name for name in (*sources, *targets) if name not in names]:
            raise InputError(
                f"study ticket_transfer: there is no data set '{unknown[0]}'; write names of {', '.join(names)}"
            )
        if missing := [name for name in targets if name not in sources]:
            raise InputError(
                f"study ticket_transfer compares with the target's own mask; write '{missing[0]}' under sources too"
            )
        if taken := {FIRST_WEIGHTS, DENSE} & {*sources, *targets} or [name for name in sources if TO in name]:
            raise InputError(f"study ticket_transfer: give the data set '{min(taken)}' another name")
        return sources, targets

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        sources, targets = self.tasks(recipe)
        rounds = ticket_rounds(self.sparsity, self.removes)
        search = builder("ticket", removes=self.removes, of="all", head="trained")
        again = builder("ticket", head="fresh")
        recipes = {}
        for target in targets:
            alone = trained_on(recipe, target)
            pruned = [*recipe.student, builder("pruned_weights", sparsity=self.sparsity)]
            change = {"data": [data for data in recipe.data if data.name == target], "stage": [alone]}
            recipes[f"{DENSE}{TO}{target}"] = recipe.model_copy(update=change)
            recipes[f"{FIRST_WEIGHTS}{TO}{target}"] = recipe.model_copy(update={**change, "student": pruned})
        for source in sources:  # its rounds are trained by the first of these cells, and read by the others
            found = trained_on(recipe, source).model_copy(update={"reshape": [search], "repeat": rounds})
            for target in targets:
                then = trained_on(recipe, target).model_copy(update={"reshape": [again]})
                both = [data for data in recipe.data if data.name in (source, target)]
                change = {"data": both, "stage": [found, then]}
                recipes[f"{source}{TO}{target}"] = recipe.model_copy(update=change)
        return {name: made.model_copy(update={"name": name, **QUIET}) for name, made in recipes.items()}

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        names = [name.split(TO) for name in runs]
        sources = list(dict.fromkeys(source for source, _ in names if source not in (FIRST_WEIGHTS, DENSE)))
        targets = list(dict.fromkeys(target for _, target in names))
        every = [*sources, FIRST_WEIGHTS]
        scores = np.array([[_score(runs[f"{source}{TO}{target}"]) for target in targets] for source in every])
        moved = Transfer.of(every, targets, scores)
        rows = [
            [source, *(runs[f"{source}{TO}{target}"].score_text() for target in targets), str(moved.dark_cells[place])]
            for place, source in enumerate(every)
        ]
        rows.append([DENSE, *(runs[f"{DENSE}{TO}{target}"].score_text() for target in targets), ""])
        sizes = [rows_of(runs[f"{source}{TO}{targets[0]}"]) for source in sources]
        title = f"TRANSFER(S, T) − TRANSFER(T, T) at {100 * self.sparsity:g} %"
        figure = difference_map(
            "transfer", title, every, targets, moved.differences.tolist(), ("mask found on", "trained on")
        )
        header = ["mask found on", *targets, "at least as good"]
        differences = [
            [source, *(f"{value:+.1f}".replace("-", "−") for value in moved.differences[place])]
            for place, source in enumerate(every)
        ]
        section = Section("Differences to the target's own mask, in points", ["mask found on", *targets], differences)
        return Answer("Transfer of tickets", _sentences(moved, sources, sizes), header, rows, figure, [section])


def rows_of(run: StudyRun) -> int:
    """How many rows the first round of a run read in its first epoch: the size of the source."""
    log = read_log(RunFolder(seed_folders(run.folder)[0][1]).stage(0) / "steps.csv", by="epoch")
    epochs, examples = log["examples"]
    return int(sum(count for epoch, count in zip(epochs, examples, strict=True) if epoch == 1))


def _score(run: StudyRun) -> float:
    """In percent; rounding makes means of the same numbers equal."""
    score = run.score()
    return math.nan if score is None else round(score[0], 6)


def _sentences(moved: Transfer, sources: Sequence[str], sizes: Sequence[int]) -> list[str]:
    counts = dict(zip(moved.sources, moved.dark_cells, strict=True))
    most = max(counts.values())
    widest = ", ".join(source for source, count in counts.items() if count == most)
    sentences = [
        "A cell counts if the mean over runs is at least that of the target's own mask; the diagonal is left out.",
        f"The masks that are at least as good as the target's own on most other tasks: {widest} ({most} cells).",
        f"Best mask for each task: {', '.join(f'{t} ← {s}' for t, s in zip(moved.targets, moved.best, strict=True))}.",
    ]
    related = spearman(list(sizes), [counts[source] for source in sources]) if len(sources) > 2 else math.nan
    if math.isnan(related):
        return [*sentences, "The rank correlation with the size of the source is not defined for these counts."]
    rows = ", ".join(f"{source} {size:,}" for source, size in zip(sources, sizes, strict=True))
    return [*sentences, f"Rank correlation of these counts with the rows of the source ({rows}): {related:+.2f}."]
