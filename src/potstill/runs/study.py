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
from potstill.measuring.measurements import MeasuredModel, Measurements
from potstill.recipe.explain import did_you_mean
from potstill.recipe.plugins import Plugin
from potstill.recipe.schema import Recipe
from potstill.reporting.numbers import score_text
from potstill.runs.defaults import complete_recipe
from potstill.system.display import Display
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder, output_path

MARK = "<!-- written by potstill study -->"  # ends every page: a page that has it may be replaced


@dataclass(frozen=True)
class StudyRun:
    """One finished run of a study. Scores and predictions are of the first quoted split of the first data set.

    A model is "teacher", "distilled" or "fine-tuned"; None is the model that the run trained.
    """

    folder: Path
    measurements: Measurements

    def predictions(self, model: str | None = None) -> Predictions | None:
        data, split, _ = self.measurements.quoted()[0]
        return self._predictions.get((model or self.measurements.student_name, data, split))

    def score(self, model: str | None = None) -> tuple[float, float] | None:
        """Return mean and deviation over seeds of the main metric, in percent."""
        place, measured = self.measurements.quoted()[0], self._measured(model)
        score = measured.score(place)
        return None if score is None else (100 * score, 100 * (measured.score_deviation(place) or 0.0))

    def score_text(self, model: str | None = None) -> str:
        """Return the same as a text: 86.2 ± 0.8, or a dash."""
        return score_text(self._measured(model), self.measurements.quoted()[0])

    def parameters(self, model: str | None = None) -> float:
        """Return the number of parameters of a model; NaN if it is unknown."""
        return self._measured(model).parameters or math.nan

    def _measured(self, model: str | None) -> MeasuredModel:
        return self.measurements.models.get(model or self.measurements.student_name, MeasuredModel())

    @cached_property
    def _predictions(self) -> RunPredictions:
        return read_predictions(self.folder, self.measurements)


@dataclass(frozen=True)
class Section:
    """A table, with or without a figure."""

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

    def parts(self) -> dict[str, Section]:
        """Return the table and the further sections, each under the name of the file of its figure."""
        first = Section(self.title, self.header, self.rows, self.figure)
        further = {f"study-{number}.svg": section for number, section in enumerate(self.sections, 2)}
        return {"study.svg": first, **further}


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
    overwrite: bool,
    display: Display,
    accept_changes: bool,
    only: str | None = None,
) -> Answer | None:
    """Train the study's runs and write OUT/study.md with its figures OUT/study.svg …; complete runs are read instead.

    Several processes may work on one study. `only`: train this run alone, and answer nothing.
    """
    from potstill.runs.cells import claim, run_cells  # load torch
    from potstill.runs.distill import are_measured, distill

    refuse_foreign_page(out := output_path(out), overwrite)
    if recipe.grid:
        raise InputError("a study makes its own runs; omit the grid from its recipe")
    recipe, chosen = complete_recipe(recipe)
    for sentence in chosen:
        display.say(sentence)
    recipes = study.runs(recipe)

    def finished(name: str) -> StudyRun | bool | None:
        if overwrite or not are_measured([RunFolder(out / name)]):
            return None
        with claim(out / name) as mine:  # one process at a time reads a run; another one comes back to it
            return work(name) if mine else None

    def work(name: str) -> StudyRun | bool:
        display.say(f"{name}, run {list(recipes).index(name) + 1} of {len(recipes)}")
        try:
            measured = distill(recipes[name], out / name, "auto", overwrite, display, accept_changes)
        except TrainingError as error:
            if not study.may_diverge(name):
                raise
            display.say(f"{name}: {error}")
            return False
        return StudyRun(out / name, Measurements.from_json(measured))

    if only is not None and only not in recipes:
        raise InputError(f"the study has no run '{only}'{did_you_mean(only, recipes)}")
    names = list(recipes) if only is None else [only]
    every = run_cells({name: out / name for name in names}, finished, work)
    if only is not None:
        return None
    runs = {name: run for name, run in every.items() if isinstance(run, StudyRun)}
    answer = study.answer(runs)
    write_atomically(out / "study.md", f"{markdown(answer)}\n{MARK}\n".encode())
    for name, section in answer.parts().items():
        if section.figure:
            write_atomically(out / name, standalone(section.figure).encode())
    return answer


def refuse_foreign_page(out: Path, overwrite: bool) -> None:
    """Refuse a folder whose study.md or study*.svg was not written by a study."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder with --out")
    page = out / "study.md"
    ours = page.is_file() and page.read_text(encoding="utf-8", errors="replace").rstrip().endswith(MARK)
    existing = [*out.glob("study.md"), *out.glob("study*.svg")]
    if existing and not ours and not overwrite:
        raise InputError(f"{existing[0]} was not written by potstill study; give another folder with --out")


def markdown(answer: Answer) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    page = f"# {answer.title}\n\n" + "\n".join(f"- {sentence}" for sentence in answer.sentences) + "\n"
    for number, (name, section) in enumerate(answer.parts().items()):
        title = f"\n## {section.title}\n" if number else ""
        table = "\n".join([line(section.header), "|" + "---|" * len(section.header), *map(line, section.rows)])
        page += f"{title}\n{table}\n" + (f"\n![{section.title}]({name})\n" if section.figure else "")
    return page


def standalone(svg: str) -> str:
    """Return an inline SVG as a file of its own: dark on white, independent of the page around it."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, _, body = svg.partition(">")
    head = head.replace("<svg", f"<svg {spaces}", 1)
    body = body.replace("</svg>", "</g></svg>")
    paper = '<rect width="100%" height="100%" fill="white"/>'
    return f'{head}>{paper}<g font-family="sans-serif">{body}'.replace("currentColor", "#222")
