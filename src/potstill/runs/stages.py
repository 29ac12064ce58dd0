"""Train a student stage by stage, in every cell of a grid, and keep the cell that is best on dev. Test is not used."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe, Stage, fingerprint
from potstill.runs.build import StudentModels, build, reshape
from potstill.runs.planning.timing import expected_time
from potstill.runs.stage_setup import Run, make_training, teacher_wants
from potstill.system import ranks
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint
from potstill.training.logs import dev_scores, follow
from potstill.training.loop import Step, train
from potstill.training.setup import Training

log = logging.getLogger(__name__)

RISING = 0.01  # of the dev score in the last epoch: training for longer would probably have gained more
WHILE_TRAINING = ("checkpoints", "best", "ends")  # folders that are removed when a stage is finished
PREPARED_ONCE = {"teacher", "data", "length", "device", "precision", "memory", "metric", "seeds", "timing"}


@dataclass(frozen=True)
class Trained(StudentModels):
    dev: float  # the score of these weights on dev
    rows: tuple[int, ...]  # training rows in an epoch of each stage, over all data sets


@dataclass(frozen=True)
class BestCell:
    student: Trained
    recipe: Recipe
    tried: list[dict[str, Any]] = field(default_factory=list)  # values and dev score of every cell, the best first


def best_of_grid(run: Run, start_at: Path | None = None) -> BestCell:
    """Train the recipe, or every cell of its grid.

    All cells share the teacher's memory. A finished cell is not trained again, and only the best cell keeps its weights.
    """
    if not run.recipe.grid:
        return BestCell(train_student(run, start_at), run.recipe)
    refuse_shared_fields(run.recipe)
    cells = grid_recipes(run.recipe)
    grid = RunFolder(run.folder).grid
    runs = [
        replace(run, recipe=recipe, folder=grid / f"{number:04d}-{fingerprint(recipe)}")
        for number, (_, recipe) in enumerate(cells)
    ]
    scores = finished_cells([cell.folder for cell in runs])
    for number, (values, _) in enumerate(cells):
        if number in scores:
            continue
        settings = ", ".join(f"{path} = {value}" for path, value in values.items())
        run.display.say(f"cell {number + 1} of {len(cells)}: {settings}")
        scores[number] = train_student(runs[number]).dev
        if ranks.is_first():
            # the score of the new best cell is written before the weights of the old one are removed
            note = json.dumps({"dev": scores[number], **values}).encode()
            write_atomically(runs[number].folder / "cell.json", note)
            for other in scores.keys() - {best_of(scores)}:
                shutil.rmtree(runs[other].folder / "finished", ignore_errors=True)
    ranks.wait()
    best = best_of(scores)
    tried = [{**cells[number][0], "dev": dev} for number, dev in scores.items()]
    return BestCell(train_student(runs[best]), cells[best][1], sorted(tried, key=lambda cell: -float(cell["dev"])))


def best_of(scores: dict[int, float]) -> int:
    """The cell with the highest score, the first one of equal cells."""
    return max(sorted(scores), key=scores.__getitem__)


@ranks.on_first
def finished_cells(folders: Sequence[Path]) -> dict[int, float]:
    """The dev scores of the cells that were finished before, by their number."""
    notes = {number: folder / "cell.json" for number, folder in enumerate(folders)}
    return {number: float(json.loads(note.read_text())["dev"]) for number, note in notes.items() if note.exists()}


def refuse_shared_fields(recipe: Recipe) -> None:
    for path in recipe.grid:
        if path.split(".")[0] in PREPARED_ONCE:
            problem = f"all cells of a grid share their rows and teacher, so '{path}' cannot vary"
            raise InputError(f"{problem}; make a run for each value")


def train_student(run: Run, start_at: Path | None = None) -> Trained:
    """Build the student and train all stages. A finished stage is loaded instead of trained again.

    `start_at`: the checkpoint to continue from, instead of the newest one.
    """
    student = build(run.recipe, run.data_sets)
    dev, rows = 0.0, []
    for number, stage in enumerate(run.recipe.stage):
        student = reshape(stage, run.recipe, student, run.data_sets)
        folder = run.folder / "finished" / str(number)
        if (finished := finished_stage(folder)) is not None:
            for head, model in enumerate(student.models):
                model.load_state_dict(finished.tensors(str(head)))
            dev = float(finished.state["dev"])
            rows.append(int(finished.state["rows"]))
            continue
        training = make_training(run, number, student)
        dev = train_stage(run, training, start_at)
        rows.append(sum(len(source.examples) for source in training.sources))
        if ranks.is_first():
            tensors = {str(head): dict(model.state_dict()) for head, model in enumerate(student.models)}
            checkpoints.save(folder, 1, tensors, {"dev": dev, "rows": rows[-1]})
            remove_checkpoints(training.folder)
        ranks.wait()
    return Trained(student.models, student.tokenizer, dev, tuple(rows))


@ranks.on_first
def finished_stage(folder: Path) -> Checkpoint | None:
    """The result of a stage that was finished before. Old versions did not note its rows; then it is trained again."""
    finished = checkpoints.newest(folder)
    return finished if finished and "rows" in finished.state else None


def remove_checkpoints(folder: Path) -> None:
    for name in WHILE_TRAINING:
        shutil.rmtree(folder / name, ignore_errors=True)


def train_stage(run: Run, training: Training, start_at: Path | None) -> float:
    """Train the student in place; return the dev score of the weights that were kept."""
    display, stage, folder = run.display, training.stage, training.folder
    for data, source, wants in zip(run.data_sets, training.sources, teacher_wants(training), strict=True):
        if not source.changing:
            with display.bar(f"asking the teacher ({data.name})", len(source.examples)) as bar:
                data.teacher.remember(source, wants, bar.advance)
    resume = checkpoint_to_resume(folder, training.number, start_at, stage)
    if resume:
        display.say(f"continuing at step {resume.step} from {resume.folder}")
    if not display.quiet:
        display.say(expected_time(training, resume.step if resume else 0))
    steps = train(training, resume)
    if not ranks.is_first():
        return exhaust(steps)
    dev = follow(steps, folder, resume, run.recipe.tracker, display)
    if advice := still_rising(dev_scores(folder), stage.optimizer.full_rate, stage.passes):
        display.say(advice)
    return dev


def exhaust(steps: Generator[Step, None, float]) -> float:
    """Take every step silently, and return what the generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return float(end.value)


@ranks.on_first
def checkpoint_to_resume(folder: Path, number: int, start_at: Path | None, stage: Stage) -> Checkpoint | None:
    """The checkpoint `start_at` if it belongs to this stage (one of another run: to the first), else the newest whole one."""
    mine = folder / "checkpoints"
    if start_at is not None:
        of_other_run = folder.parent.resolve() not in start_at.resolve().parents
        if start_at.parent.resolve() == mine.resolve() or (number == 0 and of_other_run):
            return checkpoints.load(start_at)
    newest = checkpoints.newest(mine)
    if newest is not None and (problem := lost_epochs(folder, newest, stage)):
        log.warning("%s; this stage is trained again from its beginning", problem)
        remove_checkpoints(folder)  # later steps than those to come would be taken for the newest
        return None
    return newest


def lost_epochs(folder: Path, newest: Checkpoint, stage: Stage) -> str | None:
    """The problem with weights of earlier epochs that the end of the stage will need; None if all are whole."""
    progress = newest.state["progress"]
    ends = [folder / "ends" / f"step-{epoch['step']:08d}" for epoch in progress["history"]]
    best = [folder / "best" / f"step-{progress['best_step']:08d}"] if progress["best_step"] else []
    for needed in {"best": best, "average": ends[-stage.averaged :], "last": []}[stage.keep]:
        try:
            checkpoints.load(needed)
        except InputError as error:
            return str(error).partition(";")[0]
    return None


@ranks.on_first
def save_models(trained: Trained, folders: list[Path]) -> None:
    """Save each model in its folder. A model that several data sets share is saved once."""
    for number, (student, folder) in enumerate(zip(trained.students, folders, strict=True)):
        if number == 0 or student.model is not trained.models[0]:
            save_student(student, folder)


def still_rising(scores: Sequence[float], rate: float, epochs: float) -> str | None:
    """Advice for a training whose last epoch was still better on dev; None otherwise."""
    if len(scores) < 2 or scores[-1] - max(scores[:-1]) < RISING:
        return None
    before, after = 100 * max(scores[:-1]), 100 * scores[-1]
    return (
        f"dev was still rising in the last epoch, from {before:.1f} to {after:.1f}: the student could learn more; "
        f"try --epochs {2 * epochs:g}, or --rate {2 * rate:g}"
    )
