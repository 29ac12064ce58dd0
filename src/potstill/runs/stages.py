"""Train a student stage by stage, in every cell of a grid, and keep the cell that is best on dev. Test is not used."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from potstill.errors import InputError, TrainingError
from potstill.measuring.measurements import LayerMap, TriedRate
from potstill.models.student import save_student
from potstill.recipe.cells import Cell, grid_cells
from potstill.recipe.schema import Recipe, Round, Stage
from potstill.runs.build import StudentModels, reshape, with_heads
from potstill.runs.cells import run_cells
from potstill.runs.planning.timing import expected_time
from potstill.runs.rate_search import with_best_rate
from potstill.runs.stage_cache import StageCache, stage_key
from potstill.runs.stage_setup import (
    Run,
    check_later_stages,
    first_student,
    layer_map,
    make_training,
    teacher_wants,
)
from potstill.runs.teacher_knowledge import at_teachers_temperature
from potstill.system import ranks
from potstill.system.files import file_xxh3, write_atomically
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint, step_name
from potstill.training.logs import Follower, dev_scores
from potstill.training.loop import train
from potstill.training.setup import Training

log = logging.getLogger(__name__)

RISING = 0.01  # of the dev score in the last epoch: training for longer would probably have gained more
RESULT = "result.json"  # in a stage's folder: the key of its result in the cache
WHILE_TRAINING = ("checkpoints", "best", "ends", "rewind")  # folders that are removed when a stage is finished
PREPARED_ONCE = {
    "teacher",
    "data",
    "length",
    "device",
    "precision",
    "teacher_precision",
    "memory",
    "metric",
    "seeds",
    "timing",
}


@dataclass(frozen=True)
class Trained(StudentModels):
    dev: float  # the score of these weights on dev
    rows: tuple[int, ...]  # training rows in an epoch of each round, over all data sets
    layer_maps: tuple[LayerMap, ...] = ()  # of each stage that compares a teacher with layers
    rates: tuple[TriedRate, ...] = ()  # all that were tried, in every round

    def as_trained(self, stage: Stage) -> Stage:
        """The last stage with the rate that was taken, and as many epochs as its rows were read."""
        optimizer, tried = stage.optimizer, self.rates
        if optimizer.rates and tried:
            last = [trial for trial in tried if (trial.stage, trial.steps) == (tried[-1].stage, tried[-1].steps)]
            best = min(last, key=lambda trial: math.inf if trial.loss is None else trial.loss)
            optimizer = optimizer.model_copy(update={"rate": best.rate})
        return stage.model_copy(update={"optimizer": optimizer, "epochs": stage.epochs_over(self.rows[-1])})


@dataclass(frozen=True)
class BestCell:
    student: Trained
    recipe: Recipe
    tried: list[dict[str, Any]] = field(default_factory=list)  # values and dev score of every cell, the best first


def best_of_grid(run: Run, start_at: Path | None = None, keep_first: bool = False) -> BestCell:
    """Train the recipe, or every cell of its grid. All cells share the teacher's memory."""
    if not run.recipe.grid:
        return BestCell(train_student(run, start_at, keep_first), run.recipe)
    refuse_shared_fields(run.recipe)
    cells = {cell.name: cell for cell in grid_cells(run.recipe)}
    folders = {name: run.folder / name for name in cells}

    def train_cell(name: str) -> float:
        run.display.say(f"cell {list(cells).index(name) + 1} of {len(cells)}: {cells[name].title}")
        return train_grid_cell(replace(run, recipe=cells[name].recipe, folder=folders[name]), cells[name])

    scores = run_cells(folders, lambda name: cell_score(folders[name]), train_cell)
    best = max(scores, key=scores.__getitem__)  # the first one of equal cells
    chosen = replace(run, recipe=cells[best].recipe, folder=folders[best])
    tried = [{**cells[name].values, "dev": dev} for name, dev in scores.items()]
    return BestCell(
        train_student(chosen, keep_first=keep_first),
        chosen.recipe,
        sorted(tried, key=lambda cell: -float(cell["dev"])),
    )


def train_grid_cell(run: Run, cell: Cell) -> float:
    """Train a cell and note its dev score in its folder; return the score."""
    dev = train_student(run).dev
    if ranks.is_first():
        write_atomically(run.folder / "cell.json", json.dumps({"dev": dev, **cell.values}).encode())
    ranks.wait()
    return dev


@ranks.on_first
def cell_score(folder: Path) -> float | None:
    """The dev score of a cell that was finished before."""
    note = folder / "cell.json"
    return float(json.loads(note.read_text())["dev"]) if note.exists() else None


def refuse_shared_fields(recipe: Recipe) -> None:
    for path in recipe.grid:
        if path.split(".")[0] in PREPARED_ONCE:
            problem = f"all cells of a grid share their rows and teacher, so '{path}' cannot vary"
            raise InputError(f"{problem}; make a run for each value")


def train_student(run: Run, start_at: Path | None = None, keep_first: bool = False) -> Trained:
    """Build the student and train all rounds of all stages. What was trained before, by any run, is loaded instead.

    `start_at`: the checkpoint to continue from, instead of the newest one. `keep_first`: the student will be needed again
    as it was before the first stage.
    """
    recipe, data_sets = run.recipe, run.data_sets
    reshapes = any(stage.reshape for stage in recipe.stage)
    student = first_student(run, keep=keep_first or reshapes)
    check_later_stages(recipe, student)
    start = first = next(iter(run.first_students.values()), student)  # builders, if there are any, need the copy
    dev, rows, maps, rates = 0.0, [], [], []
    early: dict[int, StudentModels] = {}  # the student at each step that a stage rewinds to
    for round_ in recipe.rounds:
        stage_sets = data_sets.of(round_.stage, student.students[0])
        student = with_heads(student, stage_sets, recipe.seed, by_teacher=round_.number > 0)
        if round_.repetition == 1:
            again = round_.stage.rewind if round_.stage.repeat == 1 else None
            start = first if again is None else early.get(again, first)
        student = reshape(round_, recipe, student, start, stage_sets)
        round_ = at_teachers_temperature(run, round_)
        training = make_training(run, round_, student)
        if round_.repetition == 1:
            maps.append(layer_map(run, round_, training))
        result = train_or_reuse(run, round_, training, student, start_at)
        dev = float(result.state["dev"])
        rows.append(int(result.state["rows"]))
        rates += [TriedRate(stage=round_.place, seed=recipe.seed, **trial) for trial in result.state.get("rates", [])]
        if training.keeps_step is not None:
            start = student.clone()
            load_models(start, result, "rewind-")
            early.setdefault(training.keeps_step, start)
        data_sets.release([later.stage for later in recipe.rounds[round_.number :]])
    shown = tuple(filter(None, maps))
    return Trained(**vars(student), dev=dev, rows=tuple(rows), layer_maps=shown, rates=tuple(rates))


def train_or_reuse(
    run: Run, round_: Round, training: Training, student: StudentModels, start_at: Path | None
) -> Checkpoint:
    """Train a stage, or take its result from the cache. The student then has the result's weights."""
    cache, data_sets = StageCache(), run.data_sets.of(round_.stage)
    key = stage_key(run.recipe, round_, training, student, data_sets)
    resume = checkpoint_to_resume(training, start_at)
    own = noted_key(training.folder, key)
    key = own or (f"{key}-{named_digest(resume)}" if is_named(resume, start_at) else key)
    with cache.held(key, run.display.say):
        result = cache.find(key) if own or cache.is_shared else None
        if result is not None:
            if ranks.is_first():
                cache.copy_logs(key, training.folder)
            load_models(student, result)
            run.display.say(f"{stage_title(run.recipe, round_)} was trained before; its result is used")
        else:
            if len(run.recipe.rounds) > 1:
                rows = " and ".join(data.name for data in data_sets)
                run.display.say(f"{stage_title(run.recipe, round_)}: {training.stage.method['name']} on {rows}")
            remember_teachers(run, training)
            training, trials = with_best_rate(training, student, key, run.display)
            dev, rewound = train_stage(run, training, resume)
            if ranks.is_first():
                tensors = {str(number): dict(model.state_dict()) for number, model in enumerate(student.models)}
                tensors |= {f"rewind-{number}": weights for number, weights in enumerate(rewound)}
                count = sum(len(source.examples) for source in training.sources)
                state = {"dev": dev, "rows": count, "rates": [asdict(trial) for trial in trials]}
                cache.store(key, tensors, state, training.folder)
            ranks.wait()
            result = cache.find(key)
            if result is None:
                raise TrainingError(f"{cache.root / key} was removed or damaged at once; run the same command again")
    if ranks.is_first():
        write_atomically(training.folder / RESULT, json.dumps({"key": key}).encode())
        remove_checkpoints(training.folder)
    return result


def load_models(student: StudentModels, result: Checkpoint, prefix: str = "") -> None:
    for number, model in enumerate(student.models):
        model.load_state_dict(result.tensors(f"{prefix}{number}"))


def stage_title(recipe: Recipe, round_: Round) -> str:
    """How messages call a round: "the student", "stage 1", or "stage 1, round 2 of 3"."""
    if len(recipe.rounds) == 1:
        return "the student"
    rounds = f", round {round_.repetition} of {round_.stage.repeat}" if round_.stage.repeat > 1 else ""
    return f"stage {round_.place}{rounds}"


@ranks.on_first
def noted_key(folder: Path, key: str) -> str | None:
    """The key of the result that this run had for the stage, if it is still the same stage: a run that began from a named
    checkpoint is continued as such."""
    try:
        noted = str(json.loads((folder / RESULT).read_bytes())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return noted if noted == key or (noted.startswith(f"{key}-") and noted.removeprefix(f"{key}-").isalnum()) else None


def is_named(resume: Checkpoint | None, start_at: Path | None) -> bool:
    return resume is not None and start_at is not None and resume.folder.resolve() == start_at.resolve()


def named_digest(resume: Checkpoint | None) -> str:
    """A digest of a checkpoint that the user named: its weights may be of another run, and so is the result."""
    assert resume is not None
    return file_xxh3(resume.folder / "manifest.json")


def remove_checkpoints(folder: Path) -> None:
    for name in WHILE_TRAINING:
        shutil.rmtree(folder / name, ignore_errors=True)


def train_stage(run: Run, training: Training, resume: Checkpoint | None) -> tuple[float, list[dict[str, Tensor]]]:
    """Train the student in place. Return the dev score of the weights that were kept, and those to which later rounds rewind."""
    display, stage, folder = run.display, training.stage, training.folder
    if resume:
        display.say(f"continuing at step {resume.step} from {resume.folder}")
    if not display.quiet:
        display.say(expected_time(training, resume.step if resume else 0))
    steps = train(training, resume)
    if ranks.is_first():
        with Follower(folder, resume, run.recipe.tracker, display) as follower:
            for step in steps:
                follower.note(step)
        if advice := still_rising(dev_scores(folder), stage.optimizer.full_rate, training.epochs):
            display.say(advice)
    else:
        for _ in steps:
            pass
    assert steps.dev is not None
    return steps.dev, steps.rewound


def remember_teachers(run: Run, training: Training) -> None:
    """Ask the teachers for the rows of a stage, and for dev if the student is compared with them there."""
    data_sets = run.data_sets.of(training.stage)
    for data, source, wants in zip(data_sets, training.sources, teacher_wants(training), strict=True):
        if not source.changing:
            epochs = training.epochs
            rows = len(source.examples) * len(source.draws(epochs))
            with run.display.bar(f"asking the teacher ({data.name})", rows) as bar:
                data.teacher.remember(source, wants, bar.advance, epochs)
    training.score.remember()


@ranks.on_first
def checkpoint_to_resume(training: Training, start_at: Path | None) -> Checkpoint | None:
    """The checkpoint `start_at` if it belongs to this stage (one of another run: to the first), else the newest whole one."""
    folder = training.folder
    mine = folder / "checkpoints"
    if start_at is not None:
        of_other_run = folder.parent.resolve() not in start_at.resolve().parents
        if start_at.parent.resolve() == mine.resolve() or (training.number == 0 and of_other_run):
            return checkpoints.load(start_at)
    newest = checkpoints.newest(mine)
    if newest is not None and (problem := lost_weights(training, newest)):
        log.warning("%s; this stage is trained again from its beginning", problem)
        remove_checkpoints(folder)  # later steps than those to come would be taken for the newest
        return None
    return newest


def lost_weights(training: Training, newest: Checkpoint) -> str | None:
    """The problem with weights of earlier steps that the end of the stage will need; None if all are whole."""
    progress, folder, stage = newest.state["progress"], training.folder, training.stage
    ends = [folder / "ends" / step_name(epoch["step"]) for epoch in progress["history"]]
    best = [folder / "best" / step_name(progress["best_step"])] if progress["best_step"] else []
    needed = {"best": best, "average": ends[-stage.averaged :], "last": []}[stage.keep]
    if training.keeps_step is not None and newest.step > training.keeps_step:
        needed.append(folder / "rewind" / step_name(training.keeps_step))
    for path in needed:
        try:
            checkpoints.load(path)
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
