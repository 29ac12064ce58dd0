"""Does size always cost, and can a student equal its teacher? Students of one method from tiny to the teacher's own depth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from potstill.api import Above, Answer, Count, Field, Recipe, Study, StudyRun
from potstill.measuring.measurements import BASELINE, STUDENT, TEACHER
from potstill.measuring.significance import ONE_SEED, Difference
from potstill.plugins.studies._differences import corrected, correction_notes, mean_difference
from potstill.reporting.numbers import metric_title, ratio
from potstill.reporting.scatter import Point, scatter
from potstill.reporting.svg import BASELINE as BASELINE_COLOUR
from potstill.reporting.svg import COLOURS


@dataclass(frozen=True)
class SizeCurve(Study):
    """Students that keep the first layers of the model they start from, beside a tiny one with random weights.

    layers: of each student.
    rate: divided by the number of layers, since shallow networks need larger steps.
    tiny: layers and width of the new network.
    """

    layers: Annotated[list[Count], Field(min_length=2)] = field(default_factory=lambda: [1, 2, 3, 6, 12])
    rate: Above = 1.2e-3
    tiny: tuple[int, int] | None = (2, 128)

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        students: dict[str, dict[str, Any]] = {}
        if self.tiny is not None:
            layers, width = self.tiny
            students[f"fresh-{layers}x{width}"] = {"build": "fresh", "layers": layers, "width": width}
        students |= {f"layers-{count}": {"build": "keep_layers", "layers": count} for count in sorted(self.layers)}
        recipes = {}
        for name, student in students.items():
            rate = {"rate": self.rate / student["layers"], "rates": []}
            stages = [
                stage.model_copy(update={"optimizer": stage.optimizer.model_copy(update=rate)})
                for stage in recipe.stage
            ]
            recipes[name] = recipe.model_copy(update={"name": name, "student": [student], "stage": stages})
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        last = list(runs.values())[-1]
        rows, points = [], []
        tested = _differences(runs)
        for name, run in runs.items():
            size = run.parameters() / 1e6
            verdicts = [tested.get(f"{name} against {other}") for other in (BASELINE, TEACHER)]
            speed = ratio(run.measurements.models[STUDENT].times_faster)
            scores = [run.score_text(model) for model in (BASELINE, STUDENT)]
            rows.append([name, f"{size:.1f} M", speed, *scores, *(v.words if v else "–" for v in verdicts)])
            for model, label, colour in ((BASELINE, "", BASELINE_COLOUR), (STUDENT, name, COLOURS[0])):
                if (score := run.score(model)) is not None:
                    mean, low, high = score[0], score[0] - score[1], score[0] + score[1]
                    points.append(Point(label, size, mean, low, high, colour, hollow=model == BASELINE))
        teacher, predictions = last.score(TEACHER), last.predictions(TEACHER)
        assert teacher is not None and predictions is not None
        points.append(Point("teacher", last.parameters(TEACHER) / 1e6, teacher[0], None, None, COLOURS[1]))
        against = ["distilled against fine-tuned", "distilled against teacher"]
        header = ["student", "parameters", "faster", "fine-tuned", "distilled", *against]
        title = f"{metric_title(predictions.metric)} in percent; filled: distilled, hollow: fine-tuned"
        figure = scatter("size-curve", "Quality against size", "parameters (millions)", title, points)
        sentences = _sentences(runs, tested) + correction_notes(tested)
        return Answer("Size curve", sentences, header, rows, figure)


def _differences(runs: Mapping[str, StudyRun]) -> dict[str, Difference]:
    """Compare each student with its baseline, its teacher, and the next larger student."""
    differences = {
        f"{name} against {other}": mean_difference([run.predictions(STUDENT)], [run.predictions(other)])
        for name, run in runs.items()
        for other in (BASELINE, TEACHER)
    }
    for small, large in itertools.pairwise(runs):
        ours, theirs = (runs[name].predictions(STUDENT) for name in (large, small))
        differences[f"{small} to {large}"] = mean_difference([ours], [theirs])
    return corrected(differences)


def _sentences(runs: Mapping[str, StudyRun], tested: Mapping[str, Difference]) -> list[str]:
    if not tested:
        return []
    if any(difference.seeds < 2 for difference in tested.values()):
        return [f"Each size has one seed, and {ONE_SEED}: write --seeds 3 to compare sizes."]
    steps = {name: tested[name] for name in (f"{a} to {b}" for a, b in itertools.pairwise(runs)) if name in tested}
    better = [name for name, difference in steps.items() if difference.is_shown and difference.mean > 0]
    others = [name for name in steps if name not in better]
    sentences = []
    if better:
        sentences.append(f"More size brings a better student from {', '.join(better)}.")
    if others:
        sentences.append(f"No gain is shown from {', '.join(others)}.")
    against = {name: tested[key] for name in runs if (key := f"{name} against {TEACHER}") in tested}
    equal = [name for name, difference in against.items() if not (difference.is_shown and difference.mean < 0)]
    if not equal:
        return [*sentences, "No student of this curve equals its teacher."]
    smallest = runs[equal[0]]
    scores = f"{smallest.score_text()} beside {smallest.score_text(TEACHER)}"
    share = 100 * smallest.parameters() / smallest.parameters(TEACHER)
    sentence = f"The smallest student without a shown loss against the teacher is {equal[0]}: {scores}, "
    return [*sentences, f"{sentence}with {share:.0f} % of the parameters."]
