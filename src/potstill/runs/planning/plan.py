"""What a recipe will cost before it is run: steps, operations, memory, disk and time. `plan` is the table of contents."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from potstill.errors import InputError
from potstill.measuring.measurements import BASELINE, STUDENT
from potstill.models.precision import TYPES, bfloat16_gain, device_described
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.baseline import baseline_recipe, is_distillation
from potstill.runs.data_set import DataSet
from potstill.runs.defaults import complete_recipe
from potstill.runs.planning.batches import parallel_seconds
from potstill.runs.planning.costs import FLOAT, StageCost, TeacherCosts, Work, stage_costs, teacher_testing_work
from potstill.runs.planning.timing import matmul_peak
from potstill.runs.precision import settle_by_device, settle_by_student
from potstill.runs.prepare import DataSets, make_accelerator, rows_to_check
from potstill.runs.rate_search import search_steps
from potstill.runs.stage_cache import bound
from potstill.runs.stage_setup import Run
from potstill.runs.stages import refuse_shared_fields
from potstill.runs.teacher_knowledge import rows_to_ask
from potstill.system import paths
from potstill.system.display import Display
from potstill.system.files import scratch_folder
from potstill.system.terminal import byte_size
from potstill.training import checkpoints

SLACK = 0.25  # of all tensors: runs on a CPU were seen to hold that much more than they use
TRIAL_BYTES = 32 * 1024**2  # of a checkpoint that is written to see how fast the disk is


@dataclass(frozen=True)
class PlannedStage:
    """A stage of the student or of its baseline, in one cell of the grid, for every seed."""

    model: str  # "distilled" or "fine-tuned"
    recipe: Recipe
    number: int  # of the round, over all stages
    seeds: list[int]
    cost: StageCost

    @property
    def stage(self) -> Stage:
        return self.recipe.rounds[self.number].stage

    @property
    def title(self) -> str:
        return f"train {self.model}" + (f", stage {self.number}" if len(self.recipe.rounds) > 1 else "")

    @property
    def epochs_and_saves(self) -> tuple[int, int]:
        rows = self.cost.rows
        return count_saves(self.stage.score_every(rows), self.stage.steps(rows)[1], self.recipe.save_every)


def plan(
    recipe: Recipe,
    out: str | Path,
    peak: float | None = None,
    devices: int = 1,
    memory: float | None = None,
    show: Display | None = None,
) -> dict[str, Any]:
    """Return lines of work with rows, tokens, steps, operations and seconds; bytes of device and disks; what does not fit;
    and what was chosen for the recipe.

    Rows are read, matched and tokenised as in a run. Seconds are those of this machine, from a few batches that are timed.
    With `peak` in GFLOPS and `devices`, they are those of another machine that reaches the same share of its peak:
    operations / (peak · share) / devices. `memory` is what a device has there, in GB.
    """
    refuse_impossible(peak, devices, memory)
    out, display = paths.output_path(out), show or Display(quiet=True)
    recipe, chosen = complete_recipe(recipe)
    refuse_shared_fields(recipe)
    accelerator = make_accelerator(recipe)
    device = accelerator.device
    recipe = settle_by_device(recipe, device, display.say)
    program = private_bytes() if device.type == "cpu" else 0
    unchecked = recipe.model_copy(update={"force": True})  # the teacher is not asked
    data_sets = DataSets(unchecked, device, display)
    first_stage = data_sets.of(recipe.stage[0])
    with scratch_folder() as scratch:
        recipe = settle_by_student(Run(recipe, data_sets, scratch, accelerator, display))
    peak_here = matmul_peak(device, TYPES[recipe.precision])
    peak_there = 1e9 * peak if peak else peak_here
    teachers = TeacherCosts(devices)
    for data in first_stage if not recipe.force else ():
        teachers.remember_logits(data, rows_to_check(data), "dev")
    distilled = is_distillation(recipe, data_sets)
    for data in first_stage if distilled else ():
        for split, examples in rows_to_ask(data):
            teachers.remember_logits(data, examples, split)
    with scratch_folder() as scratch:
        stages = planned_stages(Run(recipe, data_sets, scratch, accelerator, display), teachers)
    for data in data_sets.last:
        for split, examples in data.evaluation_splits.items():
            teachers.remember_logits(data, examples, split)
    work = {
        **({"the teacher writes": teachers.text_work} if teachers.text_work.runs else {}),
        "remember the teacher": teachers.query_work(),
        **training_work(stages, devices),
        "score dev": sum((stage.cost.scoring * (stage.epochs_and_saves[0] * recipe.seeds) for stage in stages), Work()),
        "measure at the end": measuring_work(stages, data_sets.last) * recipe.seeds,
    }
    work = {title: amount.faster(peak_there / peak_here) for title, amount in work.items()}
    work["save checkpoints"] = saving_work(stages, out)
    costs = list({id(stage.cost): stage.cost for stage in stages}.values())
    with_baseline = recipe.baseline and distilled
    needed = device_bytes(costs, with_baseline, program)
    disks = disks_of(recipe, with_baseline, teachers, [stage.cost for stage in stages], out)
    limit = int(1e9 * memory) if memory else device_memory(device)
    operations = sum(float(cost.operations.sum()) for cost in costs)
    seconds = sum(float(cost.seconds.sum()) for cost in costs)
    return {
        "chosen": chosen,
        "lines": [{"what": title, **asdict(amount)} for title, amount in work.items()],
        "seconds": sum(amount.seconds for amount in work.values()),
        "operations": sum(amount.operations for amount in work.values()),
        "device_memory": {**needed, "limit": limit},
        "disks": [{**asdict(disk), "folder": str(disk.folder), "free": disk.free} for disk in disks],
        "machine": {
            "processor": device_described(device),
            "bfloat16_gain": bfloat16_gain(device),
            "precision": recipe.precision,
            "teacher_precision": data_sets.recipe.teacher_precision if recipe.teachers else None,
            "peak_gflops": peak_there / 1e9,
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


def planned_stages(run: Run, teachers: TeacherCosts) -> list[PlannedStage]:
    """Time the stages of every cell of the grid, then those of the baseline of the first cell."""
    timed: dict[str, list[StageCost]] = {}

    def costs_of(model: str, recipe: Recipe) -> list[StageCost]:
        key = cost_key(recipe)
        if key not in timed:
            run.display.say(f"timing a few batches: {model}")
            timed[key] = stage_costs(replace(run, recipe=recipe, folder=run.folder / str(len(timed))), teachers.make)
            for cost, round_ in zip(timed[key], recipe.rounds, strict=True):
                teachers.remember_training(cost, round_.stage.epochs_over(cost.rows))
        return timed[key]

    def cells(model: str, recipe: Recipe) -> Iterator[PlannedStage]:
        for _, cell in grid_recipes(recipe):
            # a grid may fix the seed of its cells
            seeds = [cell.seed + (0 if "seed" in run.recipe.grid else more) for more in range(run.recipe.seeds)]
            for number, cost in enumerate(costs_of(model, cell)):
                yield PlannedStage(model, cell, number, seeds, cost)

    one_seed = run.recipe.model_copy(update={"seeds": 1})
    distilled = is_distillation(run.recipe, run.data_sets)
    stages = list(cells(STUDENT if distilled else BASELINE, one_seed))
    if run.recipe.baseline and distilled:
        chosen = stages[0].recipe
        rows = [stage.cost.rows for stage in stages[: len(chosen.rounds)]]
        baseline = baseline_recipe(one_seed, chosen, run.data_sets, rows)
        stages += cells(BASELINE, baseline) if baseline is not None else ()
    return stages


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


def training_work(stages: list[PlannedStage], devices: int) -> dict[str, Work]:
    """The work of each stage of student and baseline, over all cells and seeds."""
    work: dict[str, Work] = {}
    for planned in stages:
        cost, number = planned.cost, planned.number
        per_epoch, steps = planned.stage.steps(cost.rows)
        epochs, rest = divmod(steps, per_epoch)
        tokens = int(cost.token_counts.sum())
        per_step = cost.timed.step + parallel_seconds(cost.seconds, cost.batches.steps, devices) / per_epoch
        seed_work = Work(
            runs=1,
            rows_per_epoch=cost.rows,
            tokens_per_epoch=tokens,
            steps=steps,
            rows=epochs * cost.rows,
            tokens=epochs * tokens,
            operations=steps / per_epoch * float(cost.operations.sum()),
            seconds=steps * per_step,
        )
        if tried := search_steps(planned.stage.optimizer.rates or [], steps):
            title = f"find the rate of {planned.model}"
            work[title] = work.get(title, Work()) + seed_work.part(tried / steps) * len(planned.seeds)
        total = work.get(planned.title, Work())
        for seed in planned.seeds if rest else ():  # the rows in the first steps of an epoch depend on the seed
            total += cost.first_steps(planned.stage, rest, seed, number, epochs, "order")
        work[planned.title] = total + seed_work * len(planned.seeds)
    return work


def measuring_work(stages: list[PlannedStage], data_sets: list[DataSet]) -> Work:
    """Dev and tests of one seed, for student and baseline, and for a generative teacher."""
    last_stages = {stage.model: stage for stage in stages}.values()
    return sum([*(stage.cost.testing for stage in last_stages), *map(teacher_testing_work, data_sets)], Work())


def saving_work(stages: list[PlannedStage], out: Path) -> Work:
    work = Work()
    per_save, per_byte = seconds_of_saving(out)
    for stage in stages:
        epochs, saves = stage.epochs_and_saves
        weights_only = epochs + 1  # the best weights of each epoch, and those of the finished stage
        written = saves * (stage.cost.weights + stage.cost.saved_moments) + weights_only * stage.cost.weights
        seconds = per_save * (saves + weights_only) + per_byte * written
        work += Work(runs=saves, seconds=seconds) * len(stage.seeds)
    return work


def count_saves(score_every: int, steps: int, save_every: int) -> tuple[int, int]:
    """How often dev is scored; and the number of checkpoints: at each of these steps, and every `save_every` steps."""
    ends = -(-steps // score_every)
    both = steps // math.lcm(score_every, save_every) + (steps % score_every > 0 and steps % save_every == 0)
    return ends, ends + steps // save_every - both


def device_bytes(costs: list[StageCost], with_baseline: bool, program: int) -> dict[str, int]:
    """Memory of the stage that needs most. `program`: what Python and its libraries hold on a CPU before a model is loaded.

    The teacher stays loaded while the student trains, and the student while its baseline trains. Saving a checkpoint needs
    the moments of unused word embeddings for a moment, when there are no gradients and activations. `slack` is what freed
    tensors leave behind.
    """
    data_sets = (data for cost in costs for data in cost.data_sets)
    teachers = {id(data.loaded_teacher): data.loaded_teacher.model for data in data_sets if data.loaded_teacher}
    teacher_weights = sum(FLOAT * model.num_parameters() for model in teachers.values())
    stages = [
        {
            "program": program,
            "weights": teacher_weights + (1 + with_baseline) * cost.weights + FLOAT * cost.timed.copied,
            "gradients": (gradients := FLOAT * cost.timed.trained),
            "moments": cost.moments,
            "activations": max(cost.activations, cost.saved_moments - cost.moments - gradients),
        }
        for cost in costs
    ]
    most = max(stages, key=lambda parts: sum(parts.values()))
    most["slack"] = int(SLACK * (sum(most.values()) - program))
    return {**most, "peak": sum(most.values())}


def disks_of(
    recipe: Recipe, with_baseline: bool, teachers: TeacherCosts, costs: list[StageCost], out: Path
) -> list[Disk]:
    """In the order in which they fill. While a stage trains there are briefly two checkpoints and two sets of best weights."""
    largest = max(costs, key=lambda cost: cost.weights + cost.saved_moments)
    passing = 2 * (largest.weights + largest.saved_moments) + 2 * largest.weights
    student = costs[0].heads * max(cost.weights for cost in costs)
    folders = recipe.seeds * (1 + with_baseline) + (recipe.seeds > 1)
    disks = [Disk("students and checkpoints", out, folders * student, passing)]
    if teachers.by_memory:
        new_bytes = sum(queries.new_bytes for queries in teachers.by_memory.values())
        disks.insert(0, Disk("the teacher's memory", paths.memory(recipe.memory), new_bytes, 0))
    results = sum(cost.weights for cost in costs) * recipe.seeds
    disks.append(Disk("results of stages", paths.cache() / "stages", min(results, int(bound())), largest.weights))
    return disks


@dataclass(frozen=True)
class Disk:
    """A folder that a run writes to, and the bytes it will hold."""

    what: str
    folder: Path
    kept: int  # bytes that stay
    passing: int  # further bytes at the worst moment

    @property
    def free(self) -> int:
        return shutil.disk_usage(existing(self.folder)).free

    @property
    def device(self) -> int:
        return existing(self.folder).stat().st_dev


def private_bytes() -> int:
    """Memory of this process that is not mapped from files; 0 if the system does not tell."""
    return _proc_bytes("/proc/self/status", "RssAnon")


def device_memory(device: torch.device) -> int:
    """Bytes that a run may use here: free ones, and those of this process, which the run would have instead."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_reserved(device)
    free = _proc_bytes("/proc/meminfo", "MemAvailable") + private_bytes()
    return free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _proc_bytes(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def what_does_not_fit(needed: dict[str, int], limit: int, disks: list[Disk]) -> str | None:
    """The first thing that does not fit, in the order of a run, and what to write instead."""
    device = f"of the device's memory, and {byte_size(limit)} are available"
    weights = needed["program"] + needed["weights"]
    if weights > limit:
        instead = "use a smaller teacher or student, or give more with --memory"
        return f"the weights of teacher and student need {byte_size(weights)} {device}; {instead}"
    full = full_disk(disks[:1]) if len(disks) > 1 else None
    if full is None and needed["peak"] > limit:
        instead = "write --set tokens=N with a smaller N for smaller micro-batches, or use a smaller student"
        return f"training needs {byte_size(needed['peak'])} {device}; {instead}"
    return full or full_disk(disks)


def full_disk(disks: list[Disk]) -> str | None:
    """A message about the first folder whose disk is too small for it and for the folders before it on that disk."""
    for number, disk in enumerate(disks, 1):
        same = [other for other in disks[:number] if other.device == disk.device]
        needed = sum(other.kept for other in same) + max(other.passing for other in same)
        if needed > disk.free:
            sizes = f"{byte_size(needed)} are needed on this disk, and {byte_size(disk.free)} are free"
            return f"{disk.what} in {disk.folder}: {sizes}; free some space, or give a folder on another disk"
    return None


def seconds_of_saving(folder: Path) -> tuple[float, float]:
    """Seconds to save an empty checkpoint in this folder, and seconds for each byte; 0 if nothing can be written."""
    seconds = []
    try:
        with tempfile.TemporaryDirectory(prefix=".potstill-", dir=existing(folder)) as trial:
            for step, size in enumerate((4, TRIAL_BYTES)):
                start = time.perf_counter()
                checkpoints.save(Path(trial), step, {"weights": {"zeros": torch.zeros(size // 4)}}, {})
                checkpoints.rotate(Path(trial), keep=1)
                seconds.append(time.perf_counter() - start)
    except OSError:
        return 0.0, 0.0
    return seconds[0], max(seconds[1] - seconds[0], 0.0) / TRIAL_BYTES
