"""The baseline of a distillation: the same student, trained for as many steps on the labels alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
import xxhash

from potstill.data.making import TeacherDataMaker
from potstill.data.tokens import tokenizer_fingerprint
from potstill.models.fingerprints import fingerprint as network_fingerprint
from potstill.recipe import short_forms
from potstill.recipe.pace import has_random_weights
from potstill.recipe.schema import Recipe, fingerprint
from potstill.runs.build import build
from potstill.runs.data_set import DataSet
from potstill.runs.stage_setup import Run, data_makers, stage_examples
from potstill.runs.stages import BestCell, Trained, best_of_grid, save_models
from potstill.system import paths, ranks
from potstill.system.files import folder_lock


def is_distillation(recipe: Recipe, data_sets: list[DataSet]) -> bool:
    """False for fine-tuning: no stage learns from a teacher."""
    if any(isinstance(maker, TeacherDataMaker) for stage in recipe.stage for maker in data_makers(stage)):
        return True  # also if the teacher is a command
    asks = any(stage.method["name"] != "hard_labels" for stage in recipe.stage)
    return asks and all(data.has_teacher for data in data_sets)


def make_baseline(run: Run, best: BestCell) -> Trained | None:
    """Train the baseline, or take it from the cache that all recipes share; None if no row has a label."""
    if not all(len(data.train.labelled_only) for data in run.data_sets):
        run.display.say("no baseline: no training row has a label")
        return None
    recipe = baseline_recipe(run.recipe, best.recipe, run.data_sets, best.student.rows)
    folder = paths.cache() / "baselines" / baseline_key(recipe, run.data_sets)
    run.display.say(f"baseline: the same student on labels alone, starting from {initial_weights(recipe)}")
    with folder_lock(folder) if ranks.is_first() else nullcontext():  # another run may be training the same one
        trained = best_of_grid(replace(run, recipe=recipe, folder=folder)).student
    names = ("baseline", *(f"baseline-{data.name}" for data in run.data_sets[1:]))
    save_models(trained, [run.folder / name for name in names])
    return trained


def baseline_recipe(recipe: Recipe, chosen: Recipe, data_sets: list[DataSet], rows: Sequence[int]) -> Recipe:
    """The chosen recipe with the same student, seed, epochs and steps, on hard labels. `rows`: in an epoch of each stage.

    If the student trained on more rows than have labels (unlabelled ones, copies), the labelled ones are repeated, so
    that every epoch has as many steps. Where the grid varies more than the method (rate, batch), that is searched too.
    """
    last = chosen.stage[-1]
    epochs = sum(stage.passes for stage in chosen.stage)
    smoothing = last.method.get("smoothing")  # of the labels, which both students learn
    makers = [
        fields for fields in last.data if not isinstance(short_forms.make_plugin("data", fields), TeacherDataMaker)
    ]
    stage = last.model_copy(
        update={
            "method": {"name": "hard_labels", **({"smoothing": smoothing} if smoothing else {})},
            "stop_teaching": None,
            "epochs": epochs,
            "reshape": [],
            "data": makers,
            "reads": 1.0,
        }
    )
    rows_read = sum(stage.passes * count for stage, count in zip(chosen.stage, rows, strict=True))
    labelled_rows = sum(len(stage_examples(stage, data, False, chosen.seed)) for data in data_sets)
    reads = rows_read / (epochs * labelled_rows)
    stage = stage.model_copy(update={"reads": reads if abs(reads - 1) > 1e-6 else 1.0})
    student = [*chosen.student, *(builder for earlier in chosen.stage for builder in earlier.reshape)]
    fixed = {"method", "student", "seed", "start", "dropout"}
    grid = {path: values for path, values in recipe.grid.items() if not fixed & set(path.split("."))}
    return chosen.model_copy(
        update={"stage": [stage], "student": student, "grid": grid if len(recipe.stage) == 1 else {}}
    )


def baseline_key(recipe: Recipe, data_sets: list[DataSet]) -> str:
    """A digest of everything that decides the baseline's weights."""
    digest = xxhash.xxh3_128()
    student = build(recipe, data_sets)
    for model in student.models:  # the weights alone do not show the vocabulary, the activation or the dropout
        digest.update(network_fingerprint(model, tokenizer_fingerprint(student.tokenizer), recipe.length).encode())
    for data in data_sets:
        for examples in (data.train, data.dev):
            digest.update(examples.keys[examples.index].tobytes())
            if not data.task.vocabulary:  # their keys contain the gold text
                digest.update(data.task.golds(examples).tobytes())
    no_files: dict[str, object] = {"train": "", "unlabelled": None, "dev": None, "test": {}, "teacher": None}
    without_files = recipe.model_copy(
        update={"teacher": None, "start": None, "data": [data.model_copy(update=no_files) for data in recipe.data]}
    )
    digest.update(f"{fingerprint(without_files)} {sorted(recipe.grid.items())} {torch.__version__}".encode())
    return digest.hexdigest()


def initial_weights(recipe: Recipe) -> str:
    """Where a student's weights come from. A baseline that starts from its teacher's has something of the teacher."""
    if has_random_weights(recipe.student):
        return "random weights"
    return f"the weights of {recipe.start}" if recipe.start is not None else "the weights of its teacher"
