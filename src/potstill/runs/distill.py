"""From a recipe to a measured student. `distill` is the table of contents."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.measuring import comparisons
from potstill.measuring.measurements import BASELINE, STUDENT, Measurements
from potstill.measuring.run_folder import read_measurements, seed_folders, write_measurements
from potstill.recipe.pace import with_pace
from potstill.recipe.schema import Recipe
from potstill.reporting.card import model_card
from potstill.reporting.page import write_report
from potstill.runs.baseline import is_distillation, make_baseline
from potstill.runs.folder import (
    Opening,
    accepted_changes,
    choose_folder,
    disk_errors_in,
    lock_folder,
    open_folder,
    refuse_changed,
)
from potstill.runs.input_files import changes, input_digests, input_paths
from potstill.runs.measure import measure_run
from potstill.runs.prepare import make_accelerator, prepare
from potstill.runs.stage_setup import Run
from potstill.runs.stages import BestCell, Trained, best_of_grid, save_models
from potstill.system import interrupts, ranks
from potstill.system.display import Display
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder


def distill(
    recipe: Recipe,
    out: str | Path,
    resume: str = "auto",
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """Train the recipe's student in `out`, measure it beside its teacher and baseline, report, and return the measurements.

    `accept_changes`: continue although rows, a model or a version has changed since the run was started.
    """
    recipe = with_pace(recipe)  # it may have been made in Python, or its student may have changed
    make_accelerator(recipe)  # joins the other processes, if there are any
    display = show if show and ranks.is_first() else Display(quiet=True)
    choose = partial(choose_folder, recipe, out, resume, overwrite, input_paths(recipe))
    folder, checkpoint = choose()
    with disk_errors_in(folder), lock_folder(folder):
        choose()  # again: another process may have worked here until now
        inputs = input_digests(recipe)
        changed = [] if overwrite else refuse_changed(folder, inputs, accept_changes)
        for change in changed:
            display.say(f"{change} has changed since the run was started; accepted")
        opening = Opening(inputs, changed, overwrite)
        if recipe.seeds > 1:
            measurements = run_seeds(recipe, folder, opening, resume, display)
        else:
            measurements = run_seed(recipe, folder, opening, checkpoint, display)
        report(folder, measurements)
    return measurements.to_json()


def finetune(
    model: str | Path | None,
    recipe: Recipe,
    out: str | Path,
    resume: str = "auto",
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """Fine-tune a model on the labels, as a teacher or for comparison, with the data and settings of the recipe's last stage.

    Without a model, the recipe's student is trained; its first builder must make a new network, as `mlp` does.
    """
    last = recipe.stage[-1]
    method = last.method if last.method["name"] == "hard_labels" else {"name": "hard_labels"}
    stage = last.model_copy(update={"method": method, "stop_teaching": None, "reshape": []})
    student = {"start": str(model), "student": []} if model is not None else {"start": None}
    plain = recipe.model_copy(update={**student, "teacher": None, "stage": [stage]})
    return distill(plain, out, resume, overwrite, show, accept_changes)


def run_seed(
    recipe: Recipe, folder: RunFolder, opening: Opening, checkpoint: Path | None, display: Display, timed: bool = True
) -> Measurements:
    """Prepare, train, save and measure. `checkpoint`: to continue from; `timed`: also measure speed."""
    if are_measured([folder]) and not opening.overwrite:
        return complete(folder, display)
    accelerator = make_accelerator(recipe)
    data_sets = prepare(recipe, accelerator.device, display)
    start(recipe, folder, opening)
    run = Run(recipe, data_sets, folder.root, accelerator, display)
    with interrupts.deferred():
        best = best_of_grid(run, checkpoint)
        save_models(best.student, [folder.student, *(folder.heads(data.name) for data in data_sets[1:])])
        distilled = is_distillation(recipe, data_sets)
        baseline = make_baseline(run, best) if recipe.baseline and distilled else None
    students = {BASELINE: baseline} if baseline else {}
    students[STUDENT if distilled else BASELINE] = best.student
    return finish(run, best, students, timed)


@ranks.on_first
def start(recipe: Recipe, folder: RunFolder, opening: Opening) -> None:
    """Open the folder, unless a file was written to while its rows were read."""
    now = input_digests(recipe)  # also of models that were downloaded meanwhile
    if changed := changes(opening.inputs, now):
        raise InputError(f"{', '.join(changed)} changed while it was read; start again when nothing writes to it")
    open_folder(recipe, folder, replace(opening, inputs=now))


@ranks.on_first
def finish(run: Run, best: BestCell, students: dict[str, Trained], timed: bool) -> Measurements:
    """Measure all models and write the measurements."""
    folder = RunFolder(run.folder)
    measurements = measure_run(replace(run, recipe=best.recipe), students, timed)
    measurements = replace(
        measurements,
        grid=best.tried,
        changed_inputs=accepted_changes(folder),
        differences=comparisons.own_differences(comparisons.read_predictions(folder.root, measurements)),
    )
    write_measurements(folder, measurements)
    shutil.rmtree(folder.root / "finished", ignore_errors=True)  # the student's folder has the same weights
    return measurements


@ranks.on_first
def are_measured(folders: Sequence[RunFolder]) -> bool:
    return all(folder.measurements.exists() for folder in folders)


def complete(folder: RunFolder, display: Display) -> Measurements:
    display.say(f"{folder.root} is complete already; --overwrite runs it again")
    return read_measurements(folder.root)


def run_seeds(recipe: Recipe, folder: RunFolder, opening: Opening, resume: str, display: Display) -> Measurements:
    """Run each seed in its own folder, then average. The student is that of the seed that is best on dev."""
    if resume not in ("auto", "never"):
        raise InputError("several seeds continue by themselves where they stopped; write --resume auto")
    seeds = range(recipe.seed, recipe.seed + recipe.seeds)
    folders = [folder, *(RunFolder(folder.seed(seed)) for seed in seeds)]
    if not opening.overwrite and are_measured(folders):
        return complete(folder, display)
    open_folder(recipe, folder, opening)
    opened = replace(opening, overwrite=False)
    for number, seed in enumerate(seeds):
        display.say(f"seed {seed}, {number + 1} of {recipe.seeds}")
        seed_recipe = recipe.model_copy(update={"seed": seed, "seeds": 1})
        seed_folder, _ = choose_folder(seed_recipe, folder.seed(seed), "auto", False, ())
        run_seed(seed_recipe, seed_folder, opened, None, display, timed=number == 0)
    return average_seeds(recipe, folder)


@ranks.on_first
def average_seeds(recipe: Recipe, folder: RunFolder) -> Measurements:
    measurements = replace(comparisons.over_seeds(folder.root), changed_inputs=accepted_changes(folder))
    best = RunFolder(max((path for _, path in seed_folders(folder.root)), key=comparisons.dev_score))
    for model in (best.student, *(best.heads(data.name) for data in recipe.data[1:])):
        if model.exists():  # data sets that share the whole network share a folder
            shutil.copytree(model, folder.root / model.name, dirs_exist_ok=True)
    write_measurements(folder, measurements)
    return measurements


@ranks.on_first
def report(folder: RunFolder, measurements: Measurements) -> None:
    """Write the run's page and the student's model card, unless they are newer than the measurements."""
    written = folder.report.stat().st_mtime_ns if folder.report.exists() else 0
    if written < folder.measurements.stat().st_mtime_ns:
        card = model_card(measurements, folder.recipe.read_text(), measurements.student_name)
        write_atomically(folder.student / "README.md", card.encode())
        write_report([folder.root], folder.report, overwrite=True)
