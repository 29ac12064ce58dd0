"""The base of studies, and how a study runs. One file in `plugins/studies/` is one study; users type its name.

A study trains several runs, one after the other, each in a folder of its own, and writes a page with their answer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from potstill.errors import InputError, TrainingError
from potstill.measuring.comparisons import Predictions, RunPredictions, read_predictions
from potstill.measuring.measurements import BASELINE, STUDENT, Measurements
from potstill.recipe.plugins import Plugin
from potstill.recipe.schema import Recipe
from potstill.system.display import Display
from potstill.system.files import write_atomically
from potstill.system.paths import output_path

MARK = "<!-- written by potstill study -->"  # ends every page: a page that has it may be replaced


@dataclass(frozen=True)
class StudyRun:
    """One finished run of a study."""

    folder: Path
    measurements: Measurements

    def predictions(self, model: str | None = None) -> Predictions | None:
        """Return a model's predictions on the first quoted split of the first data set. None: those of the student."""
        data, split, _ = self.measurements.quoted()[0]
        models = (STUDENT, BASELINE) if model is None else (model,)  # a student trained on labels alone is a baseline
        return next((found for name in models if (found := self._predictions.get((name, data, split)))), None)

    def score(self, model: str | None = None) -> tuple[float, float] | None:
        """Return mean and deviation over seeds of the main metric on the same split, in percent. None: of the student."""
        if model is None:
            return self.score(STUDENT) or self.score(BASELINE)
        place, measured = self.measurements.quoted()[0], self.measurements.models.get(model)
        if measured is None or (score := measured.score(place)) is None:
            return None
        return 100 * score, 100 * (measured.score_deviation(place) or 0.0)

    def parameters(self, model: str = STUDENT) -> float:
        """Return the number of parameters of a model; NaN if it is unknown."""
        count = self.measurements.models[model].parameters
        return math.nan if count is None else count

    @cached_property
    def _predictions(self) -> RunPredictions:
        return read_predictions(self.folder, self.measurements)


@dataclass(frozen=True)
class Section:
    """A further table of an answer, with or without a figure."""

    title: str
    header: list[str]
    rows: list[list[str]]
    figure: str = ""  # SVG


@dataclass(frozen=True)
class Answer:
    """What a study found: sentences, a table, a figure, and further sections."""

    title: str
    sentences: list[str]
    header: list[str]
    rows: list[list[str]]
    figure: str  # SVG
    sections: list[Section] = field(default_factory=list)


class Study(Plugin):
    """A question that several runs answer together, as a frozen dataclass."""

    plugin_kind = "studies"

    @abstractmethod
    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        """Return the recipes of the runs, by name."""

    def may_diverge(self, name: str) -> bool:
        """Return True if a run of this name may diverge; it is then missing from the finished runs."""
        return False

    @abstractmethod
    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        """Return a table, a figure, and sentences that claim no more than was shown."""


def run_study(
    study: Study,
    recipe: Recipe,
    out: Path,
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> Answer:
    """Train the study's runs and write OUT/study.md with its figures OUT/study.svg …; complete runs are read instead."""
    from potstill.runs.distill import distill  # loads torch

    display = show or Display(quiet=True)
    refuse_foreign_page(out := output_path(out), overwrite)
    if recipe.grid:
        raise InputError("a study makes its own runs; omit the grid from its recipe")
    recipes = study.runs(recipe)
    runs: dict[str, StudyRun] = {}
    for number, (name, changed) in enumerate(recipes.items(), 1):
        display.say(f"{name}, run {number} of {len(recipes)}")
        try:
            measured = distill(changed, out / name, "auto", overwrite, display, accept_changes)
        except TrainingError as error:
            if not study.may_diverge(name):
                raise
            display.say(f"{name}: {error}")
        else:
            runs[name] = StudyRun(out / name, Measurements.from_json(measured))
    answer = study.answer(runs)
    write_atomically(out / "study.md", f"{markdown(answer)}\n{MARK}\n".encode())
    write_atomically(out / "study.svg", standalone(answer.figure).encode())
    for number, section in enumerate(answer.sections, 2):
        if section.figure:
            write_atomically(out / f"study-{number}.svg", standalone(section.figure).encode())
    return answer


def refuse_foreign_page(out: Path, overwrite: bool) -> None:
    """Refuse a folder whose study.md or study*.svg was not written by a study."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder with --out")
    page = out / "study.md"
    ours = page.is_file() and page.read_text(encoding="utf-8", errors="replace").rstrip().endswith(MARK)
    existing = [*out.glob("study.md"), *out.glob("study*.svg")]
    if existing and not ours and not overwrite:
        raise InputError(
            f"{existing[0]} was not written by potstill study; move it away, or give another folder with --out"
        )


def markdown(answer: Answer) -> str:
    sentences = "\n".join(f"- {sentence}" for sentence in answer.sentences)
    page = f"# {answer.title}\n\n{sentences}\n\n{table(answer)}\n\n![{answer.title}](study.svg)\n"
    for number, section in enumerate(answer.sections, 2):
        figure = f"\n![{section.title}](study-{number}.svg)\n" if section.figure else ""
        page += f"\n## {section.title}\n\n{table(section)}\n{figure}"
    return page


def table(section: Answer | Section) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(section.header), "|" + "---|" * len(section.header), *map(line, section.rows)])


def standalone(svg: str) -> str:
    """Return an inline SVG as a file of its own: dark on white, independent of the page around it."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, _, body = svg.partition(">")
    head = head.replace("<svg", f"<svg {spaces}", 1)
    body = body.replace("</svg>", "</g></svg>")
    paper = '<rect width="100%" height="100%" fill="white"/>'
    return f'{head}>{paper}<g font-family="sans-serif">{body}'.replace("currentColor", "#222")
