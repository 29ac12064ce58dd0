"""The precision of a run whose recipe leaves it open: measured, said, and kept for as long as the run goes on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable

import numpy as np
import torch
import xxhash
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.models.hooks import listen
from potstill.models.kernels import TrainingKernels
from potstill.models.precision import FASTER, autocast, bfloat16_gain, device_described, machine, synchronise
from potstill.recipe.schema import MEASURED, Recipe, fingerprint
from potstill.runs.folder import holds_work, mark_of
from potstill.runs.stage_setup import Run, first_student
from potstill.signals import Wants
from potstill.system import processor, ranks
from potstill.system.paths import RunFolder
from potstill.system.processor import best_seconds

STUDENT_FASTER = 1.2  # a student is trained in bfloat16 if that makes its passes so many times faster
TRIAL_TOKENS, TRIAL_TURNS, TRIAL_SECONDS = 1024, 5, 1.0  # padded tokens of the timed batch

Say = Callable[[str], None]


@ranks.on_first
def as_begun(recipe: Recipe, folder: RunFolder) -> Recipe:
    """With the precision that the run in this folder was begun with: a run never mixes two. Without a run, as it is."""
    mark = mark_of(folder)
    if mark is None:
        return recipe
    try:
        before = tomllib.loads(folder.recipe.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return recipe
    kept = {name: before[name] for name in MEASURED if getattr(recipe, name) == "auto" and name in before}
    begun = Recipe.model_validate(recipe.model_dump() | kept) if kept else recipe
    return begun if mark["recipe"] == fingerprint(begun) or holds_work(folder) else recipe


def settle_by_device(recipe: Recipe, device: torch.device, say: Say) -> Recipe:
    """Without fast bfloat16 the student is trained in float32; else its precision stays open. Without a teacher nothing is
    asked; else its form stays open."""
    settled = {}
    if recipe.precision == "auto" and (gain := ranks.on_first(bfloat16_gain)(device)) < FASTER:
        settled["precision"] = "float32"
        say(f"precision: float32 on {device_described(device)}: it multiplies {gain:.1f} times as fast in bfloat16")
    if recipe.teacher_precision == "auto" and not recipe.teachers:
        settled["teacher_precision"] = "float32"
    return recipe.model_copy(update=settled)


def settle_by_student(run: Run) -> Recipe:
    """Time a batch of the student in both, on a device that multiplies faster in bfloat16."""
    if run.recipe.precision != "auto":
        return run.recipe
    here, gain = bfloat16_gain(run.accelerator.device), student_gain(run)
    chosen = "bfloat16" if gain >= STUDENT_FASTER else "float32"
    products = f"{device_described(run.accelerator.device)}: it multiplies {here:.1f} times faster in bfloat16"
    if chosen == "bfloat16":
        run.display.say(f"precision: bfloat16 on {products}, and trains this student {gain:.1f} times faster")
    else:
        reason = (
            f"but trains this student only {gain:.1f} times as fast"
            if gain
            else "but this student cannot compute in it"
        )
        run.display.say(f"precision: float32 on {products}, {reason}")
    return run.recipe.model_copy(update={"precision": chosen})


def student_gain(run: Run) -> float:
    """How many times faster a batch of the student is forward and backward in bfloat16; remembered by its shape."""
    stage = run.recipe.stage[0]
    student, data = first_student(run, keep=True), run.data_sets.of(stage)[0]
    source = data.tokenised(data.train, student.tokenizer, "train")
    return ranks.on_first(_student_gain)(run, student.students[0].model, source, stage.batch)


def _student_gain(run: Run, model: PreTrainedModel, source: TokenisedSet, most: int) -> float:
    device = run.accelerator.device
    order = np.argsort(source.lengths, kind="stable")
    length = max(int(source.lengths[order[len(order) // 2]]), 1)
    count = max(1, min(most, TRIAL_TOKENS // length, len(order)))
    begin = max(0, len(order) // 2 - count // 2)
    positions = order[begin : begin + count]
    shape = json.dumps([type(model).__name__, model.config.to_dict()], sort_keys=True, default=str)
    what = {"what": "a student's passes", "shape": xxhash.xxh3_64_hexdigest(shape.encode()), **machine(device)}
    what |= {"batch": len(positions), "tokens": 8 * -(-length // 8)}
    known = processor.recall(what)
    if known is None:
        batch = source.batch(positions, source.count(positions)).to(device)
        model.to(device).train()

        def passes(precision: str) -> None:
            with autocast(model, device, precision), TrainingKernels(0):  # as in training
                logits = listen(model, batch.student, Wants(logits=True)).logits
            logits.square().mean().backward()
            model.zero_grad(set_to_none=True)
            synchronise(device)

        works = {name: lambda name=name: passes(name) for name in ("float32", "bfloat16")}
        try:
            with torch.random.fork_rng():
                seconds = best_seconds(works, TRIAL_TURNS, TRIAL_SECONDS)
            known = {"gain": seconds["float32"] / seconds["bfloat16"]}
        except RuntimeError:  # not every architecture can compute in bfloat16
            known = {"gain": 0.0}
        processor.note(what, known)
    return float(known["gain"])
