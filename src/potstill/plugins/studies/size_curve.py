"""Does size always cost, and can a student equal its teacher? Students of one method from tiny to the teacher's own depth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from potstill.measuring.measurements import BASELINE, STUDENT, TEACHER
from potstill.measuring.significance import ONE_SEED, Difference
from potstill.recipe.bounds import Above, Count
from potstill.recipe.schema import Recipe
from potstill.reporting.numbers import metric_title, ratio
from potstill.reporting.scatter import Point, scatter
from potstill.reporting.svg import BASELINE as BASELINE_COLOUR
from potstill.reporting.svg import COLOURS
from potstill.runs.study_types import Answer, Found, Study, compared, how_tested, shown, told_together


@dataclass(frozen=True)
class SizeCurve(Study):
    """`layers` of the start are kept, the first ones; `rate` is divided by their number, since shallow networks need
    larger steps. `tiny` is built fresh beside them."""

    layers: Annotated[list[Count], Field(min_length=2)] = field(default_factory=lambda: [1, 2, 3, 6, 12])
    rate: Above = 1.2e-3
    tiny: tuple[int, int] | None = (2, 128)  # layers and width

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        shapes: dict[str, tuple[dict[str, Any], float]] = {}
        if self.tiny is not None:
            layers, width = self.tiny
            shapes[f"fresh-{layers}x{width}"] = (
                {"build": "fresh", "layers": layers, "width": width},
                self.rate / layers,
            )
        for number in sorted(self.layers):
            shapes[f"layers-{number}"] = ({"build": "keep_layers", "layers": number}, self.rate / number)
        return {name: _changed(recipe, name, shape, rate) for name, (shape, rate) in shapes.items()}

    def answer(self, found: Mapping[str, Found]) -> Answer:
        last = list(found.values())[-1]
        split = last.said(TEACHER)
        rows, points = [], []
        tested = _compared(found)
        for name, one in found.items():
            size = one.parameters() / 1e6
            verdicts = [tested.get(f"{name} against {other}") for other in (BASELINE, TEACHER)]
            speed = ratio(one.measurements.models[STUDENT].times_faster)
            scores = [shown(one.score(kind)) for kind in (BASELINE, STUDENT)]
            rows.append([name, f"{size:.1f} M", speed, *scores, *(v.words if v else "–" for v in verdicts)])
            for kind, colour in ((BASELINE, BASELINE_COLOUR), (STUDENT, COLOURS[0])):
                if (score := one.score(kind)) is not None:
                    label = name if kind == STUDENT else ""
                    points.append(
                        Point(label, size, score[0], score[0] - score[1], score[0] + score[1], colour, kind == BASELINE)
                    )
        teacher = last.score(TEACHER)
        assert teacher is not None and split is not None
        weight = last.parameters(TEACHER) / 1e6
        points.append(Point("teacher", weight, teacher[0], None, None, COLOURS[1]))
        header = [
            "student",
            "parameters",
            "faster",
            "fine-tuned",
            "distilled",
            "distilled against fine-tuned",
            "distilled against teacher",
        ]
        title = f"{metric_title(split.metric)} in percent; filled: distilled, hollow: fine-tuned"
        figure = scatter("size-curve", "Quality against size", "parameters (millions)", title, points)
        sentences = _sentences(found, tested, teacher[0]) + how_tested(tested)
        return Answer("Size curve", sentences, header, rows, figure)


def _changed(recipe: Recipe, name: str, shape: dict[str, Any], rate: float) -> Recipe:
    stages = [
        stage.model_copy(update={"optimizer": stage.optimizer.model_copy(update={"rate": rate})})
        for stage in recipe.stage
    ]
    return recipe.model_copy(update={"name": name, "student": [shape], "stage": stages})


def _compared(found: Mapping[str, Found]) -> dict[str, Difference]:
    """Each student with its baseline and its teacher, and with the next larger one."""
    asked = {
        f"{name} against {other}": compared([one.said()], [one.said(other)])
        for name, one in found.items()
        for other in (BASELINE, TEACHER)
    }
    for small, large in itertools.pairwise(found):
        asked[f"{small} to {large}"] = compared([found[large].said()], [found[small].said()])
    return told_together(asked)


def _sentences(found: Mapping[str, Found], tested: Mapping[str, Difference], teacher: float) -> list[str]:
    if not tested:
        return []
    if any(one.seeds < 2 for one in tested.values()):
        return [f"The runs of each size are of one seed, and {ONE_SEED}: write --seeds 3 to hear of sizes."]
    steps = {name: tested[name] for name in (f"{a} to {b}" for a, b in itertools.pairwise(found)) if name in tested}
    paid = [name for name, one in steps.items() if one.is_shown and one.mean > 0]
    free = [name for name in steps if name not in paid]
    told = []
    if paid:
        told.append(f"More size brings a better student from {', '.join(paid)}.")
    if free:
        told.append(f"No gain is shown from {', '.join(free)}.")
    against = {name: tested[key] for name in found if (key := f"{name} against {TEACHER}") in tested}
    equal = [name for name, one in against.items() if not (one.is_shown and one.mean < 0)]
    if equal:
        one = found[equal[0]]
        score = one.score()
        assert score is not None
        share = 100 * one.parameters() / one.parameters(TEACHER)
        told.append(
            f"The smallest student of which no loss against the teacher is shown is {equal[0]}: "
            f"{score[0]:.1f} beside {teacher:.1f}, with {share:.0f} % of the parameters."
        )
    else:
        told.append("No student of this curve equals its teacher.")
    return told
