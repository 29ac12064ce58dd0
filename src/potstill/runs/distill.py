"""From a recipe to a measured student. `distill` is the table of contents."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from potstill.errors import InputError
from potstill.measuring import comparisons
from potstill.measuring.measurements import BASELINE, STUDENT, Deployed, Measurements
from potstill.measuring.run_folder import read_measurements, seed_folders, write_measurements
from potstill.recipe.cells import ALONE, Cell, all_cells, cell_named, grid_cells, seed_cells
from potstill.recipe.schema import MEASURED, Recipe
from potstill.reporting.card import model_card
from potstill.reporting.knowledge import expectations
from potstill.reporting.page import write_report
from potstill.runs.baseline import is_distillation, make_baseline
from potstill.runs.cells import claim, run_cells
from potstill.runs.defaults import as_chosen, complete_recipe
from potstill.runs.folder import (
    FolderLock,
    Opening,
    accepted_changes,
    choose_folder,
    disk_errors_in,
    open_folder,
    refuse_changed,
    usable_folder,
)
from potstill.runs.input_files import changes, input_digests, input_paths
from potstill.runs.measure import measure_run
from potstill.runs.precision import as_begun, settle_by_device, settle_by_student
from potstill.runs.prepare import DataSets, make_accelerator
from potstill.runs.stage_setup import Run
from potstill.runs.stages import (
    BestCell,
    Trained,
    best_of_grid,
    cell_score,
    refuse_shared_fields,
    save_models,
    train_grid_cell,
)
from potstill.runs.teacher_knowledge import teacher_knowledge
from potstill.runs.temperature import store_temperatures
from potstill.system import interrupts, ranks
from potstill.system.display import Display
from potstill.system.files import draft_folder, write_atomically
from potstill.system.paths import RunFolder


def distill(
    recipe: Recipe,
    out: str | Path,
    resume: str = "auto",
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
    cell: str | None = None,
) -> dict[str, Any]:
    """Train the recipe's student in `out`, measure it beside its teacher and baseline, report, and return the measurements.

    `accept_changes`: continue although rows, a model or a version has changed since the run was started. `cell`: train
    this cell alone (a seed, a point of the grid), measure nothing but seeds, and return {} unless it is the whole run.
    """
    device = make_accelerator(recipe).device  # joins the other processes, if there are any
    folder = usable_folder(out, input_paths(recipe))
    # a run that was begun keeps its choices, also where a later version would choose otherwise
    recipe, chosen = complete_recipe(recipe if overwrite else ranks.on_first(as_chosen)(recipe, folder))
    display = show if show and ranks.is_first() else Display(quiet=True)

    def choose() -> tuple[Recipe, Path | None]:
        begun = recipe if overwrite else as_begun(recipe, folder)
        return begun, choose_folder(begun, out, resume, overwrite, input_paths(recipe))[1]

    if cell not in (None, ALONE):
        cell_named(all_cells(recipe), str(cell))  # an unknown name is refused at once
    _, checkpoint = choose()
    shared = not overwrite and (recipe.seeds > 1 or bool(recipe.grid))
    with disk_errors_in(folder), FolderLock(folder, shared) as lock:
        recipe, _ = choose()  # again: another process may have worked here until now
        inputs = input_digests(recipe)
        changed = [] if overwrite else refuse_changed(folder, inputs, accept_changes)
        for change in changed:
            display.say(f"{change} has changed since the run was started; accepted")
        opening = Opening(inputs, changed, overwrite)
        recipe, ready = settle_precision(recipe, device, display, chosen)
        if cell not in (None, ALONE) or recipe.seeds > 1:  # each cell prepares its own, and this one holds a teacher
            ready = None
        if cell not in (None, ALONE):
            run_cell(recipe, cell_named(all_cells(recipe), str(cell)), folder, opening, display)
            return {}
        if recipe.seeds > 1:
            measurements = run_seeds(recipe, folder, opening, resume, display, lock)
        else:
            measurements = run_seed(recipe, folder, opening, checkpoint, display, lock, ready=ready)
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
    cell: str | None = None,
) -> dict[str, Any]:
    """Fine-tune a model on the labels, as a teacher or for comparison, with the data and settings of the recipe's last stage.

    Without a model, the recipe's student is trained; its first builder must make a new network, as `mlp` does.
    """
    return distill(by_labels(model, recipe), out, resume, overwrite, show, accept_changes, cell)


def by_labels(model: str | Path | None, recipe: Recipe) -> Recipe:
    """The recipe of `finetune`."""
    last = recipe.stage[-1]
    method = last.method if last.method["name"] == "hard_labels" else {"name": "hard_labels"}
    stage = last.model_copy(update={"method": method, "stop_teaching": None, "reshape": [], "teacher": None})
    student = {"start": str(model), "student": []} if model is not None else {"start": None}
    return recipe.model_copy(update={**student, "teacher": None, "stage": [stage]})


def run_seed(
    recipe: Recipe,
    folder: RunFolder,
    opening: Opening,
    checkpoint: Path | None,
    display: Display,
    lock: FolderLock | None = None,
    timed: bool = True,
    ready: Run | None = None,
    seeds: int = 1,
) -> Measurements:
    """Prepare, train, save and measure. `checkpoint`: to continue from; `timed`: also measure speed; `ready`: prepared before.

    `seeds`: of the whole run, which decide what it can show.
    """
    if are_measured([folder]) and not opening.overwrite:
        return complete(folder, display)
    run = begin_run(recipe, folder, opening, display, ready)
    with interrupts.deferred():
        distilled = is_distillation(recipe, run.data_sets)
        if distilled and timed:
            say_knowledge(run, seeds)
        best = best_of_grid(run, checkpoint, keep_first=recipe.baseline and distilled)
        if lock is not None and lock.shared:
            lock.alone()
            if are_measured([folder]):  # by a process that shared the cells
                return complete(folder, display)
        store_temperatures(run, best.student, STUDENT if distilled else BASELINE)
        save_models(best.student, [folder.student, *(folder.heads(data.name) for data in recipe.last_data[1:])])
        baseline = make_baseline(run, best) if recipe.baseline and distilled else None
    students = {BASELINE: baseline} if baseline else {}
    students[STUDENT if distilled else BASELINE] = best.student
    return finish(run, best, students, timed)


def say_knowledge(run: Run, seeds: int) -> None:
    """Say what the teachers of the first stage know, and what to expect of them."""
    data_sets = run.data_sets.of(run.recipe.stage[0])
    for data in data_sets:
        if (knowledge := teacher_knowledge(run.recipe, data)) is not None:
            for sentence in expectations(knowledge, seeds, data.name if len(data_sets) > 1 else ""):
                run.display.say(sentence)


def settle_precision(
    recipe: Recipe, device: torch.device, display: Display, chosen_before: Sequence[str] = ()
) -> tuple[Recipe, Run | None]:
    """The recipe with the precisions that are fastest here; also what had to be prepared to find out, if anything had.

    `chosen_before`: sentences about other choices, said once rows and teacher were found to be usable.
    """
    sentences = list(chosen_before)
    recipe = settle_by_device(recipe, device, sentences.append)
    ready = None
    if chosen_before or any(getattr(recipe, name) == "auto" for name in MEASURED):
        first = seed_cells(recipe)[0].recipe
        first = grid_cells(first)[0].recipe if first.grid else first
        ready = prepared(first, Path(), display)
    for sentence in sentences:
        display.say(sentence)
    if ready is None:
        return recipe, None
    chosen = {
        "precision": settle_by_student(ready).precision,
        "teacher_precision": ready.data_sets.recipe.teacher_precision,
    }
    ready.data_sets.recipe = recipe = recipe.model_copy(update=chosen)
    return recipe, ready


def prepared(recipe: Recipe, folder: Path, display: Display) -> Run:
    """A run with the data sets of its first stage: an unusable file or teacher is refused before anything is written."""
    accelerator = make_accelerator(recipe)
    run = Run(recipe, DataSets(recipe, accelerator.device, display), folder, accelerator, display)
    run.data_sets.of(recipe.stage[0])
    return run


def begin_run(recipe: Recipe, folder: RunFolder, opening: Opening, display: Display, ready: Run | None = None) -> Run:
    """Prepare the first stage's data sets, and open the run's folder."""
    ready = ready or prepared(recipe, folder.root, display)
    start(recipe, folder, opening)
    return replace(ready, recipe=recipe, folder=folder.root)


def run_cell(recipe: Recipe, cell: Cell, folder: RunFolder, opening: Opening, display: Display) -> None:
    """Train one cell of the recipe, unless another process is training it or it is finished."""
    of_seed = cell_named(seed_cells(recipe), cell.name.partition("grid/")[0].rstrip("/") or ALONE)
    seed_folder, place = RunFolder(folder.root / of_seed.name), folder.root / cell.name
    open_folder(recipe, folder, opening)
    with claim(place) as mine:
        if not mine:
            display.say(f"another process is training {cell.name}")
        elif not recipe.grid:
            train_seed(of_seed, seed_folder, opening, display, recipe)
        elif cell_score(place) is None:
            run = begin_run(of_seed.recipe, seed_folder, opening, display)
            refuse_shared_fields(of_seed.recipe)
            with interrupts.deferred():
                train_grid_cell(replace(run, recipe=cell.recipe, folder=place), cell)


def train_seed(cell: Cell, folder: RunFolder, opening: Opening, display: Display, whole: Recipe) -> Measurements:
    """Run one of several seeds in its own folder; only the first one measures speed. `whole`: the recipe of all seeds."""
    choose_folder(cell.recipe, folder.root, "auto", False, ())
    opened = replace(opening, overwrite=False)
    timed = cell.recipe.seed == whole.seed
    return run_seed(cell.recipe, folder, opened, None, display, timed=timed, seeds=whole.seeds)


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
    tested = comparisons.with_tests(measurements, comparisons.read_predictions(folder.root, measurements))
    measurements = replace(tested, grid=best.tried, changed_inputs=accepted_changes(folder))
    write_measurements(folder, measurements)
    return measurements


@ranks.on_first
def are_measured(folders: Sequence[RunFolder]) -> bool:
    return all(folder.measurements.exists() for folder in folders)


def complete(folder: RunFolder, display: Display) -> Measurements:
    display.say(f"{folder.root} is complete already; --overwrite runs it again")
    return read_measurements(folder.root)


def run_seeds(
    recipe: Recipe, folder: RunFolder, opening: Opening, resume: str, display: Display, lock: FolderLock
) -> Measurements:
    """Run each seed in its own folder, then average. The student is that of the seed that is best on dev."""
    if resume not in ("auto", "never"):
        raise InputError("several seeds continue by themselves where they stopped; write --resume auto")
    cells = {cell.name: cell for cell in seed_cells(recipe)}
    folders = {name: RunFolder(folder.root / name) for name in cells}
    if not opening.overwrite and are_measured([folder, *folders.values()]):
        return complete(folder, display)
    open_folder(recipe, folder, opening)

    def run_one(name: str) -> Measurements:
        display.say(f"{cells[name].title}, {list(cells).index(name) + 1} of {recipe.seeds}")
        return train_seed(cells[name], folders[name], opening, display, recipe)

    def finished(name: str) -> Measurements | None:
        return read_measurements(folders[name].root) if are_measured([folders[name]]) else None

    run_cells({name: place.root for name, place in folders.items()}, finished, run_one)
    if lock.shared:
        lock.alone()
    return average_seeds(recipe, folder)


@ranks.on_first
def average_seeds(recipe: Recipe, folder: RunFolder) -> Measurements:
    measurements = replace(comparisons.over_seeds(folder.root), changed_inputs=accepted_changes(folder))
    best = RunFolder(max((path for _, path in seed_folders(folder.root)), key=comparisons.dev_score))
    measurements = replace(measurements, deployed=deployed_of(best, measurements.deployed))
    if measurements.deployed is not None:
        with draft_folder(folder.deployed) as draft:
            shutil.copytree(best.deployed, draft, dirs_exist_ok=True)
    for model in (best.student, *(best.heads(data.name) for data in recipe.last_data[1:])):
        if model.exists():  # data sets that share the whole network share a folder
            shutil.copytree(model, folder.root / model.name, dirs_exist_ok=True)
    write_measurements(folder, measurements)
    return measurements


def deployed_of(best: RunFolder, first: Deployed | None) -> Deployed | None:
    """The deployed form of the best seed, with the speed of the first seed's, which alone is timed, if it has the same form."""
    deployed = read_measurements(best.root).deployed
    if deployed is None or first is None or deployed.form != first.form:
        return deployed
    return replace(deployed, times_faster=first.times_faster)


@ranks.on_first
def report(folder: RunFolder, measurements: Measurements) -> None:
    """Write the run's page and the student's model card, unless they are newer than the measurements."""
    written = folder.report.stat().st_mtime_ns if folder.report.exists() else 0
    if written < folder.measurements.stat().st_mtime_ns:
        card = model_card(measurements, folder.recipe.read_text(), measurements.student_name)
        write_atomically(folder.student / "README.md", card.encode())
        write_report([folder.root], folder.report, overwrite=True)
