"""What a recipe will cost before it is run: steps, operations, memory, disk and time. `plan` is the table of contents."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from potstill.errors import InputError
from potstill.measuring.measurements import BASELINE, STUDENT
from potstill.recipe.pace import with_pace
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe
from potstill.runs.baseline import baseline_recipe, is_distillation
from potstill.runs.data_set import DataSet
from potstill.runs.devices import make_accelerator
from potstill.runs.grid import refuse_shared_fields
from potstill.runs.planning.machine import (
    Disk,
    Machine,
    device_memory,
    private_bytes,
    seconds_of_saving,
    what_does_not_fit,
)
from potstill.runs.planning.stage_cost import FLOAT, StageCost, Work, stage_costs, teacher_testing_work
from potstill.runs.planning.teacher_cost import BlockedWork, TeacherCosts
from potstill.runs.planning.timing import matmul_peak
from potstill.runs.prepare import prepare
from potstill.runs.stages import Run
from potstill.runs.teacher_check import rows_to_check
from potstill.system import paths
from potstill.system.display import Display
from potstill.system.scratch import scratch_folder
from potstill.training.setup import steps_of

SLACK = 0.25  # of all tensors: runs on a CPU were seen to hold that much more than they use
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Line:
    """One kind of work over all its runs: seeds, and cells of a grid."""

    what: str
    runs: int = 0
    rows_per_epoch: int = 0
    tokens_per_epoch: int = 0  # without padding, as in steps.csv
    steps: int = 0
    rows: int = 0
    tokens: int = 0
    operations: float = 0.0
    seconds: float = 0.0

    def add(self, work: Work, seconds: float, times: int = 1) -> None:
        self.runs += times
        self.rows += times * work.rows
        self.tokens += times * work.tokens
        self.operations += times * work.operations
        self.seconds += times * seconds


@dataclass(frozen=True)
class PlannedRun:
    """A student or baseline with one cell of the grid, for every seed."""

    model: str  # "distilled" or "fine-tuned"
    recipe: Recipe
    seeds: list[int]
    costs: list[StageCost]  # of each stage


def plan(
    recipe: Recipe,
    out: str | Path,
    peak: float | None = None,
    devices: int = 1,
    memory: float | None = None,
    show: Display | None = None,
) -> dict[str, Any]:
    """Return lines of work with rows, tokens, steps, operations and seconds; bytes of device and disks; what does not fit.

    Rows are read, matched and tokenised as in a run. Seconds are those of this machine, from a few batches that are timed.
    With `peak` in GFLOPS and `devices`, they are those of another machine that reaches the same share of its peak:
    operations / (peak · share) / devices. `memory` is what a device has there, in GB.
    """
    refuse_impossible(peak, devices, memory)
    recipe, out, display = with_pace(recipe), paths.output_path(out), show or Display(quiet=True)
    refuse_shared_fields(recipe)
    accelerator = make_accelerator(recipe)
    device = accelerator.device
    program = private_bytes() if device.type == "cpu" else 0
    unchecked = recipe.model_copy(update={"force": True})  # the teacher is not asked
    data_sets = prepare(unchecked, device, display)
    peak_here = matmul_peak(device, PRECISIONS[recipe.precision])
    machine = Machine(peak_here, 1e9 * peak if peak else peak_here, devices)
    teachers = TeacherCosts(data_sets)
    if not recipe.force:
        for queries in teachers.models:
            queries.remember_logits(rows_to_check(queries.data), "dev")
    with scratch_folder() as scratch:
        runs = planned_runs(Run(recipe, data_sets, scratch, accelerator, display), teachers)
    for queries in teachers.models:
        for split, examples in queries.data.evaluation_splits.items():
            queries.remember_logits(examples, split)
    lines = [
        *([shared_line("the teacher writes", teachers.text_work, machine)] if teachers.text_work else []),
        shared_line("remember the teacher", [queries.work() for queries in teachers.models], machine),
        *training_lines(runs, machine),
        scoring_line(runs, machine),
        measuring_line(runs, data_sets, machine),
        saving_line(runs, out),
    ]
    costs = list({id(cost): cost for run in runs for cost in run.costs}.values())
    needed = device_bytes(recipe, data_sets, costs, program)
    disks = disks_of(recipe, data_sets, teachers, costs, out)
    limit = int(1e9 * memory) if memory else device_memory(device)
    operations = sum(float(cost.operations.sum()) for cost in costs)
    seconds = sum(float(cost.seconds.sum()) for cost in costs)
    return {
        "lines": [asdict(line) for line in lines],
        "seconds": sum(line.seconds for line in lines),
        "operations": sum(line.operations for line in lines),
        "device_memory": {**needed, "limit": limit},
        "disks": [{**asdict(disk), "folder": str(disk.folder), "free": disk.free} for disk in disks],
        "machine": {
            "peak_gflops": machine.peak_there / 1e9,
            "peak_gflops_here": peak_here / 1e9,
            "devices": devices,
            "share_of_peak": operations / seconds / peak_here,
        },
        "will_not_fit": what_does_not_fit(needed, limit, disks),
    }


def refuse_impossible(peak: float | None, devices: int, memory: float | None) -> None:
    for name, value, example in (("peak", peak, 19500), ("devices", devices, 4), ("memory", memory, 16)):
        if value is not None and not (value > 0 and math.isfinite(1e9 * value)):
            raise InputError(f"--{name} {value:g}: must be above zero and finite; write for example --{name} {example}")


def planned_runs(run: Run, teachers: TeacherCosts) -> list[PlannedRun]:
    """Time every run of the recipe: each cell of the grid, then the baseline of the first cell."""
    timed: dict[str, list[StageCost]] = {}

    def costs_of(model: str, recipe: Recipe) -> list[StageCost]:
        key = cost_key(recipe)
        if key not in timed:
            run.display.say(f"timing a few batches: {model}")
            timed[key] = stage_costs(replace(run, recipe=recipe, folder=run.folder / str(len(timed))), teachers.make)
            teachers.remember_training(timed[key])
        return timed[key]

    def cells(model: str, recipe: Recipe) -> list[PlannedRun]:
        grid = [cell for _, cell in grid_recipes(recipe)]
        return [PlannedRun(model, cell, seeds_of(run.recipe, cell), costs_of(model, cell)) for cell in grid]

    one_seed = run.recipe.model_copy(update={"seeds": 1})
    distilled = is_distillation(run.recipe, run.data_sets)
    runs = cells(STUDENT if distilled else BASELINE, one_seed)
    if run.recipe.baseline and distilled and all(len(data.train.labelled_only) for data in run.data_sets):
        rows = [cost.rows for cost in runs[0].costs]
        runs += cells(BASELINE, baseline_recipe(one_seed, runs[0].recipe, run.data_sets, rows))
    return runs


def seeds_of(recipe: Recipe, cell: Recipe) -> list[int]:
    """The seeds of a cell's runs, one for each seed of the recipe. A grid may fix the seed of the cell."""
    fixed = "seed" in recipe.grid
    return [cell.seed + (0 if fixed else more) for more in range(recipe.seeds)]


def cost_key(recipe: Recipe) -> str:
    """The same for recipes whose epochs cost the same: seeds, rates and weights of loss terms do not matter."""
    stages = [
        {
            "method": {name: value for name, value in stage.method.items() if not isinstance(value, float)},
            "optimizer": [stage.optimizer.name, stage.optimizer.weight_decay > 0],
            **stage.model_dump(include={"data", "reshape", "reads", "batch", "tokens"}),
        }
        for stage in recipe.stage
    ]
    return json.dumps([recipe.start, recipe.student, recipe.dropout, stages], sort_keys=True)


def shared_line(title: str, works: list[BlockedWork], machine: Machine) -> Line:
    """Work that all devices share."""
    line = Line(title)
    for work, largest_block in works:
        line.add(work, machine.shared_seconds(work, largest_block))
    return line


def training_lines(runs: list[PlannedRun], machine: Machine) -> list[Line]:
    """One line for each stage of student and baseline, over all cells and seeds."""
    lines: dict[tuple[str, int], Line] = {}
    for run in runs:
        for number in range(len(run.costs)):
            title = run.model if len(run.costs) == 1 else f"{run.model}, stage {number}"
            add_stage(lines.setdefault((run.model, number), Line(f"train {title}")), run, number, machine)
    return list(lines.values())


def add_stage(line: Line, run: PlannedRun, number: int, machine: Machine) -> None:
    cost, seeds = run.costs[number], len(run.seeds)
    per_epoch, steps = steps_of(run.recipe.stage[number], cost.rows)
    epochs, rest = divmod(steps, per_epoch)
    for seed in run.seeds if rest else ():  # the rows in the first steps of an epoch depend on the seed
        rows, tokens = cost.first_steps(run.recipe, seed, number, epochs, rest)
        line.rows += rows
        line.tokens += tokens
    line.runs += seeds
    line.rows_per_epoch, line.tokens_per_epoch = cost.rows, cost.tokens
    line.steps += seeds * steps
    line.rows += seeds * epochs * cost.rows
    line.tokens += seeds * epochs * line.tokens_per_epoch
    line.operations += seeds * steps / per_epoch * float(cost.operations.sum())
    line.seconds += seeds * steps / per_epoch * machine.epoch_seconds(cost, per_epoch)


def scoring_line(runs: list[PlannedRun], machine: Machine) -> Line:
    line = Line("score dev")
    for run in runs:
        for number, cost in enumerate(run.costs):
            epochs, _ = epochs_and_saves(run, number)
            line.add(cost.scoring, machine.seconds(cost.scoring), epochs * len(run.seeds))
    return line


def measuring_line(runs: list[PlannedRun], data_sets: list[DataSet], machine: Machine) -> Line:
    """Dev and tests, once for student and baseline, and for a generative teacher."""
    line = Line("measure at the end")
    seeds = len(runs[0].seeds)
    for run in {run.model: run for run in runs}.values():
        line.add(run.costs[-1].testing, machine.seconds(run.costs[-1].testing), seeds)
    for data in data_sets:
        work = teacher_testing_work(data)
        if work.rows:
            line.add(work, machine.seconds(work), seeds)
    return line


def saving_line(runs: list[PlannedRun], out: Path) -> Line:
    line = Line("save checkpoints")
    per_save, per_byte = seconds_of_saving(out)
    for run in runs:
        for number, cost in enumerate(run.costs):
            epochs, saves = epochs_and_saves(run, number)
            weights_only = epochs + 1  # the best weights of each epoch, and those of the finished stage
            written = saves * (cost.weights + cost.saved_moments) + weights_only * cost.weights
            seconds = (per_save * (saves + weights_only) + per_byte * written) / saves
            line.add(Work(), seconds, saves * len(run.seeds))
    return line


def epochs_and_saves(run: PlannedRun, number: int) -> tuple[int, int]:
    return count_saves(*steps_of(run.recipe.stage[number], run.costs[number].rows), run.recipe.save_every)


def count_saves(per_epoch: int, steps: int, save_every: int) -> tuple[int, int]:
    """The number of epochs that begin; and of checkpoints: at the end of each epoch, and every `save_every` steps."""
    ends = -(-steps // per_epoch)
    both = steps // math.lcm(per_epoch, save_every) + (steps % per_epoch > 0 and steps % save_every == 0)
    return ends, ends + steps // save_every - both


def device_bytes(recipe: Recipe, data_sets: list[DataSet], costs: list[StageCost], program: int) -> dict[str, int]:
    """Memory of the stage that needs most. `program`: what Python and its libraries hold on a CPU before a model is loaded.

    The teacher stays loaded while the student trains, and the student while its baseline trains. Saving a checkpoint needs
    the moments of unused word embeddings for a moment, when there are no gradients and activations. `slack` is what freed
    tensors leave behind.
    """
    teachers = {id(data.loaded_teacher): data.loaded_teacher.model for data in data_sets if data.loaded_teacher}
    teacher_weights = sum(FLOAT * model.num_parameters() for model in teachers.values())
    students = 1 + (recipe.baseline and is_distillation(recipe, data_sets))
    stages = [
        {
            "program": program,
            "weights": teacher_weights + students * cost.weights + FLOAT * cost.timed.copied,
            "gradients": cost.gradients,
            "moments": cost.moments,
            "activations": max(cost.activations, cost.saved_moments - cost.moments - cost.gradients),
        }
        for cost in costs
    ]
    most = max(stages, key=lambda parts: sum(parts.values()))
    most["slack"] = int(SLACK * (sum(most.values()) - program))
    return {**most, "peak": sum(most.values())}


def disks_of(
    recipe: Recipe, data_sets: list[DataSet], teachers: TeacherCosts, costs: list[StageCost], out: Path
) -> list[Disk]:
    """In the order in which they fill. While a stage trains there are briefly two checkpoints and two sets of best weights."""
    largest = max(costs, key=lambda cost: cost.weights + cost.saved_moments)
    passing = 2 * (largest.weights + largest.saved_moments) + (2 + len(recipe.stage)) * largest.weights
    student = costs[0].heads * max(cost.weights for cost in costs)
    with_baseline = recipe.baseline and is_distillation(recipe, data_sets)
    folders = recipe.seeds * (2 if with_baseline else 1) + (recipe.seeds > 1)
    disks = [Disk("students and checkpoints", out, folders * student, passing)]
    if teachers.memories:
        disks.insert(0, Disk("the teacher's memory", paths.memory(recipe.memory), teachers.new_bytes, 0))
    if with_baseline:
        disks.append(Disk("baselines", paths.baselines(), recipe.seeds * student, passing))
    return disks
