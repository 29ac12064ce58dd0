"""What a recipe will cost, before it is run: steps, operations, memory, disk and time. `plan` is the table of contents."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from potstill.errors import InputError
from potstill.measuring.measurements import BASELINE, STUDENT
from potstill.recipe.pace import paced
from potstill.recipe.resolve import grid_recipes
from potstill.recipe.schema import Recipe
from potstill.runs.baseline import baseline_recipe, is_distillation
from potstill.runs.data_set import DataSet
from potstill.runs.devices import make_accelerator
from potstill.runs.grid import refuse_shared_fields
from potstill.runs.planning.batch_sizes import spread_out
from potstill.runs.planning.dry_memory import Asking, askings
from potstill.runs.planning.dry_texts import ImaginedOutputs
from potstill.runs.planning.machine import Disk, device_memory, existing, overfull, private_bytes, seconds_of_saving
from potstill.runs.planning.stage_cost import FLOAT, StageCost, Work, costs_of, teachers_work
from potstill.runs.planning.timing import matmul_peak
from potstill.runs.prepare import prepare
from potstill.runs.stages import Run
from potstill.runs.teacher_check import rows_to_check
from potstill.system import paths
from potstill.system.display import Display
from potstill.system.scratch import scratch_folder
from potstill.system.units import byte_size
from potstill.training.setup import steps_of

SLACK = 0.25  # of all tensors: runs on a CPU were seen to hold so much more than what they use
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
class Machine:
    """Where the seconds are counted: this machine, or one of another peak and with more devices."""

    here: float  # operations per second of a large product
    there: float
    devices: int

    def seconds(self, work: Work) -> float:
        """Operations / (peak · the share of it that is reached here): what the first device does alone, as it scores dev."""
        return work.seconds * self.here / self.there

    def shared_seconds(self, work: Work, block: float) -> float:
        """The same for what is shared out in blocks, of which the largest takes `block` seconds here."""
        return max(work.seconds / self.devices, block) * self.here / self.there

    def epoch_seconds(self, cost: StageCost, steps: int) -> float:
        """The same for steps, which come one after the other: within one, micro-batches go to the devices in turn."""
        return (spread_out(cost.seconds, cost.shapes, self.devices) + steps * cost.timed.step) * self.here / self.there


def plan(
    recipe: Recipe,
    out: str | Path,
    peak: float | None = None,
    devices: int = 1,
    memory: float | None = None,
    show: Display | None = None,
) -> dict[str, Any]:
    """Lines of work with rows, tokens, steps, operations and seconds; bytes of device and disks; what will not fit first.

    Rows are read, matched and tokenised as a run does it. Seconds are those of this machine, from a few batches that are
    timed. With `peak` in GFLOPS and `devices` they are those of another one, which is taken to reach the same share of its
    peak: operations / (peak · share) / devices. `memory` is what a device there has, in GB.
    """
    show = show or Display(quiet=True)
    refuse_impossible(peak, devices, memory)
    out = paths.to_write(out)
    recipe = paced(recipe)
    refuse_shared_fields(recipe)
    accelerator = make_accelerator(recipe)
    device = accelerator.device
    empty = private_bytes() if device.type == "cpu" else 0
    data = prepare(recipe.model_copy(update={"force": True}), device, show)  # not asked yet whether it knows the task
    here = matmul_peak(device, PRECISIONS[recipe.precision])
    machine = Machine(here, 1e9 * peak if peak else here, devices)
    asked = askings(data)
    outputs = ImaginedOutputs()
    known: dict[str, list[StageCost]] = {}
    training: dict[tuple[str, int], Line] = {}
    scoring, measuring, saving = Line("score dev"), Line("measure at the end"), Line("save checkpoints")
    per_save, per_byte = seconds_of_saving(Path(out))
    for one in asked:
        if one and not recipe.force:
            one.remember_rows(rows_to_check(one.data), "dev")
    with scratch_folder() as place:
        for name, several in trainings(recipe, data, known):
            for cell in several:
                if (key := cost_key(cell)) not in known:
                    show.say(f"timing a few batches: {name}")
                    known[key] = costs_of(Run(cell, data, place / str(len(known)), accelerator, show), outputs.make)
                    remember_rows(asked, known[key])
                for number, cost in enumerate(known[key]):
                    title = name if len(cell.stage) == 1 else f"{name}, stage {number}"
                    line = training.setdefault((name, number), Line(f"train {title}"))
                    scorings, saves = add_stage(line, cell, seeds_of(recipe, cell), number, cost, machine)
                    scoring.add(cost.scoring, machine.seconds(cost.scoring), scorings * recipe.seeds)
                    best = scorings + 1  # weights alone, and those of the finished stage
                    written = saves * (cost.weights + cost.saved_moments) + best * cost.weights
                    each = (per_save * (saves + best) + per_byte * written) / saves
                    saving.add(Work(), each, saves * recipe.seeds)
            measuring.add(known[key][-1].testing, machine.seconds(known[key][-1].testing), recipe.seeds)
    for one_set in data:
        work = teachers_work(one_set)
        if work.rows:
            measuring.add(work, machine.seconds(work), recipe.seeds)
    writing, remembering = Line("the teacher writes"), Line("remember the teacher")
    for work, block in outputs.works:
        writing.add(work, machine.shared_seconds(work, block))
    for one in asked:
        if one:
            for split, examples in {"dev": one.data.dev, **one.data.tests}.items():
                one.remember_rows(examples, split)
            work, block = one.work()
            remembering.add(work, machine.shared_seconds(work, block))
    lines = [*([writing] if outputs.works else []), remembering, *training.values(), scoring, measuring, saving]
    every = [cost for costs in known.values() for cost in costs]
    needed = device_bytes(recipe, data, every, empty)
    disks = disks_of(recipe, data, asked, every, Path(out))
    limit = int(1e9 * memory) if memory else device_memory(device)
    return {
        "lines": [asdict(line) for line in lines],
        "seconds": sum(line.seconds for line in lines),
        "operations": sum(line.operations for line in lines),
        "device_memory": {**needed, "limit": limit},
        "disks": [{**asdict(one), "folder": str(one.folder), "free": free_at(one.folder)} for one in disks],
        "machine": {
            "peak_gflops": machine.there / 1e9,
            "peak_gflops_here": here / 1e9,
            "devices": devices,
            "share_of_peak": sum(float(one.operations.sum()) for one in every)
            / sum(float(one.seconds.sum()) for one in every)
            / here,
        },
        "will_not_fit": too_much(needed, limit, disks),
    }


def refuse_impossible(peak: float | None, devices: int, memory: float | None) -> None:
    for name, value, example in (("peak", peak, 19500), ("devices", devices, 4), ("memory", memory, 16)):
        if value is not None and not (value > 0 and math.isfinite(1e9 * value)):
            raise InputError(f"--{name} {value:g}: must be above zero and finite; write for example --{name} {example}")


def trainings(
    recipe: Recipe, data: list[DataSet], known: dict[str, list[StageCost]]
) -> Iterator[tuple[str, list[Recipe]]]:
    """What is trained for each seed: a name, and the cells of which one is kept. The baseline is that of the first cell,
    which is `known` when it is asked for."""
    taught = is_distillation(recipe, data)
    one = recipe.model_copy(update={"seeds": 1})
    several = [cell for _, cell in grid_recipes(one)]
    yield STUDENT if taught else BASELINE, several
    if recipe.baseline and taught and all(len(each.train.labelled_only) for each in data):
        rows = [cost.rows for cost in known[cost_key(several[0])]]
        yield BASELINE, [cell for _, cell in grid_recipes(baseline_recipe(one, several[0], data, rows))]


def seeds_of(recipe: Recipe, cell: Recipe) -> list[int]:
    """Of the runs of a cell, one for each seed of the recipe; a grid may give the cell a seed of its own."""
    fixed = "seed" in recipe.grid
    return [cell.seed + (0 if fixed else more) for more in range(recipe.seeds)]


def cost_key(recipe: Recipe) -> str:
    """The same for recipes whose stages cost the same for each epoch: seeds, rates and weights of terms change nothing."""
    stages = [
        {
            "method": {name: value for name, value in stage.method.items() if not isinstance(value, float)},
            "optimizer": [stage.optimizer.name, stage.optimizer.weight_decay > 0],
            **stage.model_dump(include={"data", "reshape", "reads", "batch", "tokens"}),
        }
        for stage in recipe.stage
    ]
    return json.dumps([recipe.start, recipe.student, recipe.dropout, stages], sort_keys=True)


def remember_rows(asked: list[Asking | None], costs: list[StageCost]) -> None:
    for cost in costs:
        for one, source, wants in zip(asked, cost.sources, cost.asks, strict=True):
            if one and not source.changes:
                one.remember(source, wants)


def add_stage(
    line: Line, recipe: Recipe, seeds: list[int], number: int, cost: StageCost, machine: Machine
) -> tuple[int, int]:
    """A run of a stage for each seed. How often dev is scored in one, and how often a checkpoint is saved."""
    per_epoch, steps = steps_of(recipe.stage[number], cost.rows)
    epochs, rest = divmod(steps, per_epoch)
    for seed in seeds if rest else ():  # which rows the first steps of an epoch meet is drawn
        rows, tokens = cost.rows_and_tokens(recipe, seed, number, epochs, rest)
        line.rows += rows
        line.tokens += tokens
    runs, done, each = len(seeds), steps / per_epoch, cost.tokens
    line.runs += runs
    line.rows_per_epoch, line.tokens_per_epoch = cost.rows, each
    line.steps += runs * steps
    line.rows += runs * epochs * cost.rows
    line.tokens += runs * epochs * each
    line.operations += runs * done * float(cost.operations.sum())
    line.seconds += runs * done * machine.epoch_seconds(cost, per_epoch)
    return ends_and_saves(per_epoch, steps, recipe.save_every)


def ends_and_saves(per_epoch: int, steps: int, save_every: int) -> tuple[int, int]:
    """How many of the steps end an epoch, the last one among them; and how many end one or are a multiple of `save_every`."""
    ends = -(-steps // per_epoch)
    both = steps // math.lcm(per_epoch, save_every) + (steps % per_epoch > 0 and steps % save_every == 0)
    return ends, ends + steps // save_every - both


def device_bytes(recipe: Recipe, data: list[DataSet], costs: list[StageCost], empty: int) -> dict[str, int]:
    """Of the stage that takes most. `program`: what Python and its libraries hold on a CPU before there is a model.

    The teacher stays loaded while the student trains, and the student while its baseline does. A checkpoint needs the
    moments of unused word vectors for a moment, when there are no gradients and activations. `slack` is what freed
    tensors leave behind.
    """
    teachers = {id(one.loaded_teacher): one.loaded_teacher.model for one in data if one.loaded_teacher}
    of_teachers = sum(FLOAT * one.num_parameters() for one in teachers.values())
    kept = 1 + (recipe.baseline and is_distillation(recipe, data))
    found = [
        {
            "program": empty,
            "weights": of_teachers + kept * cost.weights + FLOAT * cost.timed.spare,
            "gradients": cost.gradients,
            "moments": cost.moments,
            "activations": max(cost.activations, cost.saved_moments - cost.moments - cost.gradients),
        }
        for cost in costs
    ]
    most = max(found, key=lambda one: sum(one.values()))
    most["slack"] = int(SLACK * (sum(most.values()) - empty))
    return {**most, "peak": sum(most.values())}


def disks_of(
    recipe: Recipe, data: list[DataSet], asked: list[Asking | None], costs: list[StageCost], out: Path
) -> list[Disk]:
    """In the order in which they fill. While a stage trains there are two checkpoints and two best weights for a moment."""
    memories = {id(one.imagined): one.imagined for one in asked if one}
    new = sum(one.new_bytes for one in memories.values())
    last = max(costs, key=lambda cost: cost.weights + cost.saved_moments)
    passing = 2 * (last.weights + last.saved_moments) + (2 + len(recipe.stage)) * last.weights
    student = costs[0].heads * max(cost.weights for cost in costs)
    with_baseline = recipe.baseline and is_distillation(recipe, data)
    folders = recipe.seeds * (2 if with_baseline else 1) + (recipe.seeds > 1)
    found = [Disk("the teacher's memory", paths.memory(recipe.memory), new, 0)] if memories else []
    found.append(Disk("students and checkpoints", out, folders * student, passing))
    if with_baseline:
        found.append(Disk("baselines", paths.baselines(), recipe.seeds * student, passing))
    return found


def free_at(folder: Path) -> int:
    return shutil.disk_usage(existing(folder)).free


def too_much(needed: dict[str, int], limit: int, disks: list[Disk]) -> str | None:
    """The first thing that will not fit, and what to write instead."""
    weights = needed["program"] + needed["weights"]
    if weights > limit:
        told = f"the weights of teacher and student need {byte_size(weights)} of the device's memory, {byte_size(limit)} are there"
        return f"{told}; take a smaller teacher or student, or give more with --memory"
    full = overfull(disks[:1]) if len(disks) > 1 else None
    if full is None and needed["peak"] > limit:
        told = f"training needs {byte_size(needed['peak'])} of the device's memory, {byte_size(limit)} are there"
        return f"{told}; write --set tokens=N with a smaller N for smaller micro-batches, or a smaller student"
    return full or overfull(disks)
