"""Does a better teacher help? The same student from several teachers, starts and layer maps (arXiv:1908.09355)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potstill.api import Answer, Count, InputError, Recipe, Study, StudyRun
from potstill.measuring.measurements import TEACHER
from potstill.plugins.studies._differences import (
    corrected,
    correction_notes,
    forest_figure,
    mean_difference,
    points_text,
    score_text,
)

MAPS = ("skip", "last")


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

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if len(self.teachers) < 2:
            raise InputError(
                'study better_teacher compares teachers; write --with \'teachers={deep="DIR", shallow="DIR"}\''
            )
        if not any("map" in stage.method for stage in recipe.stage):
            raise InputError(
                "study better_teacher compares layer maps; give a recipe whose method has one: --method patient"
            )
        recipes: dict[str, Recipe] = {}

        def add(teacher: str, start: str, keep: str, layers: int | str) -> None:
            for layer_map in MAPS:
                name = f"{teacher}-{start}-{keep}-{layer_map}"
                stages = [
                    stage.model_copy(update={"method": {**stage.method, "map": layer_map}})
                    if "map" in stage.method
                    else stage
                    for stage in recipe.stage
                ]
                change = {
                    "name": name,
                    "teacher": self.teachers[teacher],
                    "start": self.one if start == "one" else None,
                    "student": [{"build": "keep_layers", "layers": layers}],
                    "stage": stages,
                }
                recipes[name] = recipe.model_copy(update=change)

        for teacher in self.teachers:
            for start in ("own", "one") if self.one is not None else ("own",):
                add(teacher, start, "first", self.layers)
        for keep in ("skip", "last"):
            add(next(iter(self.teachers)), "own", keep, f"{keep}:{self.layers}")
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        first = next(iter(self.teachers))
        starts = [start for start in ("own", "one") if f"{first}-{start}-first-skip" in runs]
        sources = {"own": "itself", "one": "one"}
        header = ["teacher", "its own score", *(f"begun from {sources[start]}, {m}" for start in starts for m in MAPS)]
        rows = []
        for teacher in self.teachers:
            cells = [score_text(runs[f"{teacher}-{start}-first-{m}"].score()) for start in starts for m in MAPS]
            rows.append([teacher, score_text(runs[f"{teacher}-own-first-skip"].score(TEACHER)), *cells])
        for keep in ("skip", "last"):
            cells = [score_text(runs[f"{first}-own-{keep}-{m}"].score()) for m in MAPS]
            rows.append([f"{first}, begun as its {keep} layers", "", *cells, *[""] * (len(header) - 4)])
        differences = corrected(
            {
                question: mean_difference(
                    *([run.predictions() for name, run in runs.items() if chosen(name)] for chosen in sides)
                )
                for question, sides in self._questions(starts).items()
            }
        )
        sentences = [f"{question}: {points_text(each)}; {each.words}." for question, each in differences.items()]
        figure = forest_figure("better-teacher", "Difference in points", differences)
        return Answer("Better teacher", [*sentences, *correction_notes(differences)], header, rows, figure)

    def _questions(self, starts: list[str]) -> dict[str, tuple[Callable[[str], bool], Callable[[str], bool]]]:
        """Return the questions, each with the runs on its two sides."""

        def named(
            teacher: str = "", start: str = "", keep: str = "first", layer_map: str = ""
        ) -> Callable[[str], bool]:
            wanted = (teacher, start, keep, layer_map)
            return lambda name: all(want in ("", got) for want, got in zip(wanted, name.rsplit("-", 3), strict=True))

        first, *others = self.teachers
        questions = {
            f"Taught by {other} instead of {first}, begun from {start}": (named(other, start), named(first, start))
            for other in others
            for start in starts
        }
        if len(starts) > 1:
            questions["Begun from its own teacher instead of one model"] = (named(start="own"), named(start="one"))
        questions["Map Last instead of Skip"] = (named(layer_map="last"), named(layer_map="skip"))
        for keep in ("skip", "last"):
            question = f"Begun as the {keep} layers of {first} instead of the first"
            questions[question] = (named(first, "own", keep), named(first, "own"))
        return questions
