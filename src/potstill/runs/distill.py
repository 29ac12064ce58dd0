"""From a recipe to a measured student. `distill` is the table of contents."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError, TrainingError
from potstill.measuring import comparisons as results
from potstill.measuring import measurements
from potstill.measuring.measurements import main_student
from potstill.measuring.run_folder import read_measurements, seed_folders
from potstill.models.fingerprints import fingerprint as network_fingerprint
from potstill.models.student import Student, save_student
from potstill.recipe import short_forms
from potstill.recipe.pace import draws_weights, paced
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe, fingerprint
from potstill.reporting.card import model_card
from potstill.reporting.page import write_report
from potstill.runs.build import build
from potstill.runs.data_set import DataSet
from potstill.runs.folder import alone_in, changed_inputs, choose_folder, holds_work, open_folder, refuse_changed
from potstill.runs.inputs import Content, content_of, input_paths, refuse_changed_while_read
from potstill.runs.measure import measured
from potstill.runs.prepare import prepare
from potstill.runs.stages import Trained, rows_of, train_student
from potstill.system import interrupts, paths, ranks
from potstill.system.display import Display
from potstill.system.files import locked, write_atomically
from potstill.system.paths import RunFolder

PREPARED_ONCE = {"teacher", "data", "length", "device", "precision", "memory", "metric", "seeds", "timing"}


def distill(
    recipe: Recipe,
    out: str | Path,
    resume: str = "auto",
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """Make the recipe's student in `out`, measure it beside its teacher and baseline, report, and return the measurements.

    `accept_changes`: go on though rows, a model or a version is another than when the run was begun.
    """
    recipe = paced(recipe)  # also one that was made in Python, or whose student is another now
    make_accelerator(recipe)  # of several processes each has its rank from here on
    show = show if show and ranks.is_first() else Display(quiet=True)
    choose = partial(choose_folder, recipe, out, resume, overwrite, input_paths(recipe))
    folder, checkpoint = choose()
    with disk_told(folder), alone_in(folder):
        choose()  # once more: another process may have worked here until a moment ago
        inputs = content_of(recipe)
        changed = [] if overwrite else refuse_changed(folder, inputs, accept_changes)
        for one in changed:
            show.say(f"{one} is another than when the run was begun; accepted")
        if recipe.seeds > 1:
            found = several_seeds(recipe, folder, inputs, changed, resume, overwrite, show)
        else:
            found = one_seed(recipe, folder, inputs, changed, checkpoint, overwrite, True, show)
        tell(folder, found)
    return found


@contextmanager
def disk_told(folder: RunFolder) -> Iterator[None]:
    """An error of the disk says whether anything was saved before it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if not holds_work(folder):
            raise
        told = f"{error.strerror or error}: {error.filename or folder.root}"
        raise TrainingError(f"{told}; what was saved before stays usable") from error


def one_seed(
    recipe: Recipe,
    folder: RunFolder,
    inputs: Content,
    changed: list[str],
    checkpoint: Path | None,
    overwrite: bool,
    timed: bool,
    show: Display,
) -> dict[str, Any]:
    """Train, save, measure. `inputs`, and what `changed` of them since the run was begun; `timed`: also speeds."""
    if not overwrite and are_measured([folder]):
        return complete(folder, show)
    accelerator = make_accelerator(recipe)
    data = prepare(recipe, accelerator.device, show)

    @ranks.on_first
    def begin() -> None:
        now = content_of(recipe)  # also of models that came from the hub since
        refuse_changed_while_read(inputs, now)
        open_folder(recipe, folder, overwrite, now, changed)

    begin()
    with interrupts.watched():
        trained, chosen, tried = best_of_grid(recipe, data, folder, accelerator, checkpoint, show)
        places = [folder.student, *(folder.heads(one.name) for one in data[1:])]
        save_models(trained, places)
        taught = is_taught(recipe, data)
        wanted = recipe.baseline and taught
        baseline = make_baseline(recipe, chosen, data, folder, accelerator, show) if wanted else None
    students = (
        {measurements.BASELINE: baseline, measurements.STUDENT: trained} if taught else {measurements.BASELINE: trained}
    )

    @ranks.on_first
    def finish() -> dict[str, Any]:
        found = measured(chosen, data, students, folder, timed, show)
        found |= {"grid": tried} if tried else {}
        found |= changed_inputs(folder)
        if baseline is not None:
            found["models"][measurements.BASELINE]["begun_from"] = begun_from(chosen)
        found["differences"] = results.own_differences(results.read_predictions(folder.root, found))
        write_atomically(folder.measurements, json.dumps(found, indent=1).encode())
        shutil.rmtree(folder.root / "finished", ignore_errors=True)  # the same weights lie in the student's folder now
        return found

    return finish()


@ranks.on_first
def are_measured(folders: Sequence[RunFolder]) -> bool:
    return all(folder.measurements.exists() for folder in folders)


def complete(folder: RunFolder, show: Display) -> dict[str, Any]:
    """What an earlier call measured."""
    show.say(f"{folder.root} is complete already; --overwrite makes it anew")
    return read_measurements(folder.root)


def several_seeds(
    recipe: Recipe,
    folder: RunFolder,
    inputs: Content,
    changed: list[str],
    resume: str,
    overwrite: bool,
    show: Display,
) -> dict[str, Any]:
    """A run in a folder of its own for each seed, then their mean. The student is that of the seed that is best on dev."""
    if resume not in ("auto", "never"):
        raise InputError("several seeds go on by themselves where they stopped; write --resume auto")
    seeds = range(recipe.seed, recipe.seed + recipe.seeds)
    wanted = [folder, *(RunFolder(folder.seed(seed)) for seed in seeds)]
    if not overwrite and are_measured(wanted):
        return complete(folder, show)
    open_folder(recipe, folder, overwrite, inputs, changed)
    for place, seed in enumerate(seeds):
        show.say(f"seed {seed}, {place + 1} of {recipe.seeds}")
        one = recipe.model_copy(update={"seed": seed, "seeds": 1})
        inside, _ = choose_folder(one, folder.seed(seed), "auto", False, ())
        one_seed(one, inside, inputs, changed, None, False, place == 0, show)

    @ranks.on_first
    def finish() -> dict[str, Any]:
        found = results.over_seeds(folder.root)
        found |= changed_inputs(folder)
        best = max((place for _, place in seed_folders(folder.root)), key=results.dev_score)
        for place in (RunFolder(best).student, *(RunFolder(best).heads(data.name) for data in recipe.data[1:])):
            if place.exists():  # data sets that share all of the network have one folder
                shutil.copytree(place, folder.root / place.name, dirs_exist_ok=True)
        write_atomically(folder.measurements, json.dumps(found, indent=1).encode())
        return found

    return finish()


@ranks.on_first
def tell(folder: RunFolder, found: dict[str, Any]) -> None:
    """The page of the run, and the student's model card."""
    made = folder.report.stat().st_mtime_ns if folder.report.exists() else 0
    if made < folder.measurements.stat().st_mtime_ns:
        card = model_card(found, folder.recipe.read_text(), main_student(found))
        write_atomically(folder.student / "README.md", card.encode())
        write_report([folder.root], folder.report, overwrite=True)


def finetune(
    model: str | Path | None,
    recipe: Recipe,
    out: str | Path,
    resume: str = "auto",
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """A teacher: the encoder trained on the labels alone, by the data and settings of the recipe's last stage.

    Without a model it is the recipe's student, whose first builder must need none, as `mlp`.
    """
    last = recipe.stage[-1]
    method = last.method if last.method["name"] == "hard_labels" else {"name": "hard_labels"}
    stage = last.model_copy(update={"method": method, "stop_teaching": None, "reshape": []})
    begun = {"start": str(model), "student": []} if model is not None else {"start": None}
    plain = recipe.model_copy(update={**begun, "teacher": None, "stage": [stage]})
    return distill(plain, out, resume, overwrite, show, accept_changes)


def make_accelerator(recipe: Recipe) -> Accelerator:
    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[recipe.precision]
    kind = recipe.device.split(":")[0]
    there = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, False):
        raise InputError(
            f"this machine has no device '{recipe.device}'; write --device cpu, or --device auto to take what there is"
        )
    if recipe.precision == "float16" and not there["cuda"]:
        raise InputError("float16 needs a CUDA device; write precision = 'bfloat16' or 'float32'")
    if ":" in recipe.device:
        os.environ["ACCELERATE_TORCH_DEVICE"] = recipe.device
    # while the first rank measures, the others wait; a rank that died is noticed at once, whatever the limit
    patient = InitProcessGroupKwargs(timeout=timedelta(hours=12))
    return Accelerator(cpu=kind == "cpu", mixed_precision=precision, kwargs_handlers=[patient])


def best_of_grid(
    recipe: Recipe,
    data: list[DataSet],
    folder: RunFolder,
    accelerator: Accelerator,
    start_at: Path | None,
    show: Display,
) -> tuple[Trained, Recipe, list[dict[str, Any]]]:
    """The student, its recipe, and with a grid what each cell reached on dev, the best first. Test is not looked at.

    Every cell asks the same memory. Only the best cell's weights are kept, and a finished cell is not run again.
    """
    if not recipe.grid:
        return train_student(recipe, data, folder.root, accelerator, show, start_at), recipe, []
    refuse_unshared(recipe)
    combinations = grid_recipes(recipe)
    places = [folder.grid / f"{number:04d}-{fingerprint(cell)}" for number, (_, cell) in enumerate(combinations)]
    reached = finished_cells(places)
    for number, (chosen, cell) in enumerate(combinations):
        if number in reached:
            continue
        show.say(
            f"cell {number + 1} of {len(combinations)}: "
            + ", ".join(f"{path} = {value}" for path, value in chosen.items())
        )
        reached[number] = train_student(cell, data, places[number], accelerator, show, None).dev
        if ranks.is_first():
            write_atomically(places[number] / "cell.json", json.dumps({"dev": reached[number], **chosen}).encode())
            best = max(sorted(reached), key=reached.__getitem__)
            for other in reached:
                if other != best:  # the note of the new best is written before the weights of the old one go
                    shutil.rmtree(places[other] / "finished", ignore_errors=True)
    ranks.wait()
    best = max(sorted(reached), key=reached.__getitem__)
    tried = sorted(
        ({**combinations[number][0], "dev": dev} for number, dev in reached.items()),
        key=lambda cell: -float(cell["dev"]),
    )
    winner = combinations[best][1]
    return train_student(winner, data, places[best], accelerator, show, None), winner, tried


@ranks.on_first
def finished_cells(places: Sequence[Path]) -> dict[int, float]:
    """The dev score of each cell of the grid that an earlier call finished, by its number."""
    notes = {number: place / "cell.json" for number, place in enumerate(places)}
    return {number: float(json.loads(note.read_text())["dev"]) for number, note in notes.items() if note.exists()}


def refuse_unshared(recipe: Recipe) -> None:
    for path in recipe.grid:
        if path.split(".")[0] in PREPARED_ONCE:
            raise InputError(
                f"a grid shares its rows and teacher, so '{path}' cannot vary in it; make a run for each value"
            )


def is_taught(recipe: Recipe, data: list[DataSet]) -> bool:
    """Whether the run is a distillation at all, and not fine-tuning."""
    if any(asks_teacher(maker) for stage in recipe.stage for maker in stage.data):
        return True  # be it a teacher that is a command
    return all(one.has_teacher for one in data) and any(stage.method["name"] != "hard_labels" for stage in recipe.stage)


def asks_teacher(maker: dict[str, Any]) -> bool:
    """Whether a data maker's rows hold what the teacher says."""
    return bool(getattr(short_forms.made("data", maker), "asks_teacher", False))


def baseline_recipe(recipe: Recipe, chosen: Recipe, data: list[DataSet], rows: Sequence[int]) -> Recipe:
    """The chosen student's shape, seed, epochs and steps on hard labels alone. `rows`: those of an epoch of each stage.

    Where the student read more rows than have labels (unlabelled ones, copies), the labelled ones are repeated, so that
    every epoch has as many steps. What a grid varies beside the method (the rate, the batch) is searched as well.
    """
    last = chosen.stage[-1]
    epochs = sum(one.passes for one in chosen.stage)
    smoothing = last.method.get("smoothing")  # of the labels, which both learn
    method = {"name": "hard_labels", **({"smoothing": smoothing} if smoothing else {})}
    makers = [maker for maker in last.data if not asks_teacher(maker)]
    alone = {"method": method, "stop_teaching": None, "epochs": epochs, "reshape": [], "data": makers, "reads": 1.0}
    stage = last.model_copy(update=alone)
    read = sum(one.passes * count for one, count in zip(chosen.stage, rows, strict=True))
    reads = read / (epochs * rows_of(stage, data, chosen.seed))
    stage = stage.model_copy(update={"reads": reads if abs(reads - 1) > 1e-6 else 1.0})
    student = [*chosen.student, *(fields for one in chosen.stage for fields in one.reshape)]
    fixed = {"method", "student", "seed", "start", "dropout"}
    grid = {path: values for path, values in recipe.grid.items() if not fixed & set(path.split("."))}
    return chosen.model_copy(
        update={"stage": [stage], "student": student, "grid": grid if len(recipe.stage) == 1 else {}}
    )


def make_baseline(
    recipe: Recipe, chosen: Recipe, data: list[DataSet], folder: RunFolder, accelerator: Accelerator, show: Display
) -> Trained | None:
    """The baseline, kept in the cache: every recipe that shares it asks for the same one. None without labelled rows."""
    if not all(len(one.train.labelled_only) for one in data):
        show.say("no baseline: no training row has a label")
        return None
    plain = baseline_recipe(recipe, chosen, data, [rows_of(stage, data, chosen.seed) for stage in chosen.stage])
    models, tokenizer = build(plain, data)
    digest = xxhash.xxh3_128()
    for model in models:  # random weights fit any vocabulary of their size, and weights any activation or dropout
        digest.update(network_fingerprint(model, tokenizer_fingerprint(tokenizer), recipe.length).encode())
    for one in data:
        for examples in (one.train, one.dev):
            digest.update(examples.keys[examples.index].tobytes())
            if not one.task.generates:  # else the key is also that of the gold text
                digest.update(one.task.golds(examples).tobytes())
    same = plain.model_copy(
        update={
            "teacher": None,
            "start": None,
            "data": [
                one.model_copy(update={"train": "", "unlabelled": None, "dev": None, "test": {}, "teacher": None})
                for one in plain.data
            ],
        }
    )
    digest.update(f"{fingerprint(same)} {sorted(plain.grid.items())} {torch.__version__}".encode())
    del models  # another student of this size would lie in memory all along
    place = RunFolder(paths.baselines() / digest.hexdigest())
    show.say(f"baseline: the same student on labels alone, begun from {begun_from(plain)}")
    with locked(place.root) if ranks.is_first() else nullcontext():  # another run may be making the same one
        trained, _, _ = best_of_grid(plain, data, place, accelerator, None, show)
    places = [folder.baseline, *(folder.root / f"baseline-{one.name}" for one in data[1:])]
    save_models(trained, places)
    return trained


def begun_from(recipe: Recipe) -> str:
    """What a student's weights were before its first step: what a baseline has of the teacher depends on it."""
    if draws_weights(recipe.student):
        return "random weights"
    return f"the weights of {recipe.start}" if recipe.start is not None else "the weights of its teacher"


@ranks.on_first
def save_models(trained: Trained, places: list[Path]) -> None:
    """A folder for each head; one for data sets that share all of the network."""
    first, *others = zip(trained.models, places, strict=True)
    for model, place in [first, *(other for other in others if other[0] is not first[0])]:
        save_student(Student(model, trained.tokenizer), place)
