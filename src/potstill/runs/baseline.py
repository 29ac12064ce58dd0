"""The baseline of a distillation: the same student, trained for as many steps on the labels alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from potstill.data.making import TeacherDataMaker
from potstill.measuring.measurements import BASELINE
from potstill.recipe import short_forms
from potstill.recipe.pace import has_random_weights
from potstill.recipe.schema import Recipe, Round, Stage
from potstill.runs.prepare import DataSets
from potstill.runs.stage_setup import Run, data_makers, stage_examples
from potstill.runs.stages import BestCell, Trained, best_of_grid, save_models
from potstill.runs.temperature import store_temperatures
from potstill.system.paths import RunFolder


def is_distillation(recipe: Recipe, data_sets: DataSets) -> bool:
    """False for fine-tuning: no stage learns from a teacher."""
    if any(isinstance(maker, TeacherDataMaker) for stage in recipe.stage for maker in data_makers(stage)):
        return True  # also if the teacher is a command
    asking = [stage for stage in recipe.stage if stage.method["name"] != "hard_labels"]
    return any(data_sets.have_teachers(stage) for stage in asking)


def make_baseline(run: Run, best: BestCell) -> Trained | None:
    """Train the baseline, or take it from the cache that all recipes share; None if no row has a label."""
    recipe = baseline_recipe(run.recipe, best.recipe, run.data_sets, best.student.rows)
    if recipe is None:
        run.display.say("no baseline: no training row has a label")
        return None
    folder = RunFolder(run.folder).baseline_run
    run.display.say(f"baseline: the same student on labels alone, starting from {initial_weights(recipe)}")
    trained = best_of_grid(replace(run, recipe=recipe, folder=folder)).student
    store_temperatures(run, trained, BASELINE)
    names = ("baseline", *(f"baseline-{data.name}" for data in recipe.last_data[1:]))
    save_models(trained, [run.folder / name for name in names])
    return trained


def baseline_recipe(recipe: Recipe, chosen: Recipe, data_sets: DataSets, rows: Sequence[int]) -> Recipe | None:
    """The chosen recipe with the same student, seed, epochs and steps, on labels; None if its last stage has none.

    `rows`: in an epoch of each round. Neighbouring stages with the same rows and task become one. If the student trained
    on more rows than have labels (unlabelled ones, copies), the labelled ones are repeated, so that every epoch has as many
    steps. Where the grid varies more than the method (rate, batch), that is searched too.
    """
    rounds = zip(chosen.rounds, rows, strict=True)
    groups = [list(group) for _, group in groupby(rounds, key=lambda each: (each[0].stage.on, each[0].stage.task))]
    stages = [stage for group in groups if (stage := labels_stage(data_sets, chosen.seed, group)) is not None]
    if not stages or (stages[-1].on, stages[-1].task) != (chosen.stage[-1].on, chosen.stage[-1].task):
        return None
    student = [*chosen.student, *(builder for stage in chosen.stage for builder in stage.reshape)]
    fixed = {"method", "student", "seed", "start", "dropout"}
    grid = {path: values for path, values in recipe.grid.items() if not fixed & set(path.split("."))}
    return chosen.model_copy(
        update={"stage": stages, "student": student, "grid": grid if len(chosen.stage) == 1 else {}}
    )


def labels_stage(every: DataSets, seed: int, group: Sequence[tuple[Round, int]]) -> Stage | None:
    """One stage on labels with as many steps as these rounds, each with its rows in an epoch; None without a label."""
    last = group[-1][0]
    data_sets = every.of(last.stage)
    if not all(len(data.train.labelled_only) for data in data_sets):
        return None
    passes = [round_.stage.epochs_over(count) for round_, count in group]
    epochs = sum(passes)
    smoothing = last.stage.method.get("smoothing")  # of the labels, which both students learn
    makers = [
        fields
        for fields in last.stage.data
        if not isinstance(short_forms.make_plugin("data", fields), TeacherDataMaker)
    ]
    stage = last.stage.model_copy(
        update={
            "method": {"name": "hard_labels", **({"smoothing": smoothing} if smoothing else {})},
            "stop_teaching": None,
            "epochs": epochs,
            "min_steps": 0,
            "reshape": [],
            "data": makers,
            "reads": 1.0,
            "trains": last.stage.trains if len(group) == 1 else "all",
            "repeat": 1,
            "rewind": None,
        }
    )
    rows_read = sum(times * count for times, (_, count) in zip(passes, group, strict=True))
    plain = last._replace(stage=stage)
    labelled_rows = sum(len(stage_examples(plain, data, False, seed)) for data in data_sets)
    reads = rows_read / (epochs * labelled_rows)
    return stage.model_copy(update={"reads": reads if abs(reads - 1) > 1e-6 else 1.0})


def initial_weights(recipe: Recipe) -> str:
    """Where a student's weights come from. A baseline that starts from its teacher's has something of the teacher."""
    if has_random_weights(recipe.student):
        return "random weights"
    return f"the weights of {recipe.start}" if recipe.start is not None else "the weights of its teacher"
