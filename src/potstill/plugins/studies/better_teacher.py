"""Does a better teacher help? The same student from several teachers, begun from each or from one, Skip and Last (arXiv:1908.09355)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from potstill.errors import InputError
from potstill.measuring.measurements import TEACHER
from potstill.recipe.bounds import Count
from potstill.recipe.schema import Recipe
from potstill.reporting.figures import forest
from potstill.runs.study_types import Answer, Found, Study, compared, how_tested, in_points, shown, told_together

MAPS = ("skip", "last")


@dataclass(frozen=True)
class BetterTeacher(Study):
    """`teachers`: a name and a folder each. A student of `layers` begins as the first layers of its own teacher, or of `one`
    model for all. Of the first teacher, also as every n-th layer (skip) and as its last ones."""

    teachers: dict[str, str] = field(default_factory=dict)
    one: str | None = None
    layers: Count = 3

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if len(self.teachers) < 2:
            raise InputError(
                'study better_teacher compares teachers; write --with \'teachers={deep="DIR", shallow="DIR"}\''
            )
        found: dict[str, Recipe] = {}
        for teacher, folder in self.teachers.items():
            for start, place in (("own", None), ("one", self.one)):
                if start == "one" and self.one is None:
                    continue
                for way in MAPS:
                    name = f"{teacher}-{start}-first-{way}"
                    found[name] = _changed(recipe, name, folder, place, self.layers, way)
        first, folder = next(iter(self.teachers.items()))
        for keep in ("skip", "last"):
            for way in MAPS:
                name = f"{first}-own-{keep}-{way}"
                found[name] = _changed(recipe, name, folder, None, f"{keep}:{self.layers}", way)
        return found

    def answer(self, found: Mapping[str, Found]) -> Answer:
        first = next(iter(self.teachers))
        starts = [one for one in ("own", "one") if f"{first}-{one}-first-skip" in found]
        header = [
            "teacher",
            "its own score",
            *(f"begun from {'itself' if s == 'own' else 'one'}, {w}" for s in starts for w in MAPS),
        ]
        rows = []
        for teacher in self.teachers:
            cells = [shown(found[f"{teacher}-{start}-first-{way}"].score()) for start in starts for way in MAPS]
            rows.append([teacher, shown(found[f"{teacher}-own-first-skip"].score(TEACHER)), *cells])
        for keep in ("skip", "last"):
            cells = [shown(found[f"{first}-own-{keep}-{way}"].score()) for way in MAPS]
            rows.append([f"{first}, begun as its {keep} layers", "", *cells, *[""] * (len(header) - 4)])
        questions = self._questions(list(starts))
        verdicts = {
            words: compared(*([found[n].said() for n in found if side(n)] for side in sides))
            for words, sides in questions.items()
        }
        kept = told_together(verdicts)
        sentences = [f"{words}: {in_points(one)}; {one.words}." for words, one in kept.items()] + how_tested(kept)
        ranges = [(100 * one.mean, 100 * one.low, 100 * one.high, one.is_shown) for one in kept.values()]
        figure = forest("better-teacher", "Difference in points, with 95 % intervals", list(kept), ranges)
        return Answer("Better teacher", sentences, header, rows, figure)

    def _questions(self, starts: list[str]) -> dict[str, tuple[Callable[[str], bool], Callable[[str], bool]]]:
        """What is asked, and which runs stand on each side."""

        def like(teacher: str = "", start: str = "", keep: str = "first", way: str = "") -> Callable[[str], bool]:
            wanted = (teacher, start, keep, way)
            return lambda name: all(want in ("", got) for want, got in zip(wanted, name.rsplit("-", 3), strict=True))

        first, *others = self.teachers
        asked = {
            f"Taught by {one} instead of {first}, begun from {start}": (like(one, start), like(first, start))
            for one in others
            for start in starts
        }
        if len(starts) > 1:
            asked["Begun from its own teacher instead of one model"] = (like(start="own"), like(start="one"))
        asked["Map Last instead of Skip"] = (like(way="last"), like(way="skip"))
        for keep in ("skip", "last"):
            asked[f"Begun as the {keep} layers of {first} instead of the first"] = (
                like(first, "own", keep),
                like(first, "own"),
            )
        return asked


def _changed(recipe: Recipe, name: str, teacher: str, start: str | None, keep: int | str, way: str) -> Recipe:
    stages: list[Any] = [
        stage.model_copy(update={"method": {**stage.method, "map": way}}) if "map" in stage.method else stage
        for stage in recipe.stage
    ]
    if not any("map" in stage.method for stage in recipe.stage):
        raise InputError(
            "study better_teacher compares layer maps; give a recipe of a method with one: --method patient"
        )
    shape = [{"build": "keep_layers", "layers": keep}]
    change = {"name": name, "teacher": teacher, "start": start, "student": shape, "stage": stages}
    return recipe.model_copy(update=change)
