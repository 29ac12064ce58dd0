"""Does a better teacher help? The same student from several teachers, starts and layer maps (arXiv:1908.09355)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from potstill.api import Answer, Count, InputError, Recipe, Study, StudyRun
from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import TEACHER
from potstill.plugins.studies._differences import corrected, differences_text, forest_figure, mean_difference

MAPS = KEPT = ("skip", "last")


@dataclass(frozen=True)
class BetterTeacher(Study):
    """A student starts as the first layers of its own teacher, or of one model for all teachers. From the first teacher it
    also starts as every n-th layer (skip) and as the last ones.

    teachers: a name and a folder each.
    one: a model from which students of all teachers start as well.
    layers: of the student.
    """

    teachers: dict[str, str] = field(default_factory=dict)
    one: str | None = None
    layers: Count = 3

    @property
    def _starts(self) -> list[str]:
        return ["own"] if self.one is None else ["own", "one"]

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if len(self.teachers) < 2:
            raise InputError(
                'study better_teacher compares teachers; write --with \'teachers={deep="DIR", shallow="DIR"}\''
            )
        if not any("map" in stage.method for stage in recipe.stage):
            raise InputError("study better_teacher compares layer maps; write --set method=patient")
        students = [(teacher, start, "first") for teacher in self.teachers for start in self._starts]
        students += [(next(iter(self.teachers)), "own", keep) for keep in KEPT]
        recipes = {}
        for (teacher, start, keep), layer_map in itertools.product(students, MAPS):
            name = f"{teacher}-{start}-{keep}-{layer_map}"
            layers = self.layers if keep == "first" else f"{keep}:{self.layers}"
            methods = [stage.method | ({"map": layer_map} if "map" in stage.method else {}) for stage in recipe.stage]
            stages = zip(recipe.stage, methods, strict=True)
            change = {
                "name": name,
                "teacher": self.teachers[teacher],
                "start": self.one if start == "one" else None,
                "student": [{"build": "keep_layers", "layers": layers}],
                "stage": [stage.model_copy(update={"method": method}) for stage, method in stages],
            }
            recipes[name] = recipe.model_copy(update=change)
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        first, *others = self.teachers
        sources = {"own": "itself", "one": "one"}
        header = ["teacher", "its own score"]
        header += [f"begun from {sources[start]}, {layer_map}" for start in self._starts for layer_map in MAPS]
        rows = []
        for teacher in self.teachers:
            names = [f"{teacher}-{start}-first-{layer_map}" for start in self._starts for layer_map in MAPS]
            rows.append([teacher, runs[names[0]].score_text(TEACHER), *(runs[name].score_text() for name in names)])
        for keep in KEPT:
            cells = [runs[f"{first}-own-{keep}-{layer_map}"].score_text() for layer_map in MAPS]
            rows.append([f"{first}, begun as its {keep} layers", "", *cells, *[""] * (len(header) - 4)])

        def chosen(*wanted: str) -> list[Predictions | None]:
            """Return the predictions of the runs with this teacher, start, kept layers and map; "" is any."""
            return [
                run.predictions()
                for name, run in runs.items()
                if all(want in ("", part) for want, part in zip(wanted, name.rsplit("-", 3), strict=True))
            ]

        questions = {}
        for other, start in itertools.product(others, self._starts):
            sides = chosen(other, start, "first", ""), chosen(first, start, "first", "")
            questions[f"Taught by {other} instead of {first}, begun from {start}"] = sides
        if self.one is not None:
            sides = chosen("", "own", "first", ""), chosen("", "one", "first", "")
            questions["Begun from its own teacher instead of one model"] = sides
        questions["Map Last instead of Skip"] = chosen("", "", "first", "last"), chosen("", "", "first", "skip")
        for keep in KEPT:
            sides = chosen(first, "own", keep, ""), chosen(first, "own", "first", "")
            questions[f"Begun as the {keep} layers of {first} instead of the first"] = sides
        differences = corrected({question: mean_difference(*sides) for question, sides in questions.items()})
        figure = forest_figure("better-teacher", "Difference in points", differences)
        return Answer("Better teacher", differences_text(differences), header, rows, figure)
