"""What lies in a teacher's soft answers, read from finished runs: entropy, nearness of classes, bias, noise of gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load

from potstill.data.batches import all_lengths, epoch_order, step_batches
from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import GOLD
from potstill.measuring.run_folder import seed_folders
from potstill.measuring.significance import contrast
from potstill.models.student import load_student
from potstill.recipe.resolve import resolve
from potstill.runs.build import build
from potstill.runs.devices import make_accelerator
from potstill.runs.prepare import prepare
from potstill.runs.stages import Run, StageInputs, make_training, teacher_wants
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.tasks.metrics.labels import softmax
from potstill.training.gradients import gradients
from potstill.training.setup import make_network


def errors(said: Predictions) -> list[int]:
    """Wrong answers of each seed."""
    return [int((~said.task.right(said.targets, logits)).sum()) for logits in said.logits]


def gap_closed(alone: Predictions, taught: Predictions, teacher: Predictions) -> tuple[float, float, float]:
    """Share of the errors between student alone and teacher that teaching took away, with its 95 % interval over other rows
    and other seeds: that of the share's first derivatives by the three scores (delta method)."""
    alone, taught, teacher = (replace(one, metric="accuracy") for one in (alone, taught, teacher))
    without, reached, theirs = (one.mean() for one in (alone, taught, teacher))
    gap = theirs - without
    if gap == 0:
        return math.nan, math.nan, math.nan
    share = (reached - without) / gap
    sides = ((1 / gap, taught), ((share - 1) / gap, alone), (-share / gap, teacher))
    found = contrast([(weight, said.scores()) for weight, said in sides], len(alone.targets))
    return share, share + found.low - found.mean, share + found.high - found.mean


def entropies(logits: np.ndarray, temperatures: Sequence[float]) -> list[float]:
    """Mean entropy in bits of (rows, classes) answers at each temperature."""
    found = []
    for temperature in temperatures:
        shares = softmax(logits / temperature)
        found.append(float(-(shares * np.log2(np.maximum(shares, 1e-30))).sum(-1).mean()))
    return found


def mean_answers(logits: np.ndarray, classes: np.ndarray, temperature: float) -> np.ndarray:
    """(classes, classes): the mean answer at a temperature to the rows of each class."""
    shares = softmax(logits / temperature)
    return np.stack([shares[classes == one].mean(0) for one in range(logits.shape[1])])


def kept_answers(run: Path, model: str, split: str) -> tuple[list[np.ndarray], np.ndarray]:
    """A model's logits of each seed on the labelled rows of a split of the first data set, and their classes."""
    files = [load(RunFolder(folder).answers.read_bytes()) for _, folder in seed_folders(run)]
    data = next(iter(files[0])).split("/")[1]
    gold = files[0][f"{GOLD}/{data}/{split}"]
    there = ~np.isnan(gold)
    return [file[f"{model}/{data}/{split}"][there] for file in files], gold[there].astype(int)


def bias_for(logits: np.ndarray, number: int, share: float) -> float:
    """What to add to one class's logit so that this share of all answers is that class. No label is looked at."""
    others = np.delete(logits, number, axis=1).max(1)
    return float(np.quantile(others - logits[:, number], share))


def with_bias(logits: np.ndarray, number: int, bias: float) -> np.ndarray:
    raised = logits.copy()
    raised[:, number] += bias
    return raised


def gradient_noise(run: Path, trained: bool, steps: int = 24) -> float:
    """Variance of a step's gradient over steps, summed over weights, by the squared length of its mean.

    Of the run's own method and batches, at the student's first weights or at its last ones.
    """
    recipe = resolve(RunFolder(seed_folders(run)[0][1]).recipe).recipe
    accelerator, quiet = make_accelerator(recipe), Display(quiet=True)
    data = prepare(recipe, accelerator.device, quiet)
    student = build(recipe, data)
    if trained:
        student.models[0].load_state_dict(load_student(seed_folders(run)[0][1] / "student").model.state_dict())
    stage = recipe.stage[-1]
    shared = Run(recipe, data, run, accelerator, quiet)
    training = make_training(StageInputs(shared, len(recipe.stage) - 1, student))
    if not training.sources[0].changes:
        data[0].teacher.remember(training.sources[0], teacher_wants(training)[0])
    lengths, starts = all_lengths(training.sources)
    order = epoch_order(lengths, stage.batch, recipe.seed, 0, 0, "order")[:steps]
    network, projections = make_network(training)
    network.train()
    total = squares = torch.zeros(())
    for number, step in enumerate(order):
        network.zero_grad(set_to_none=True)
        gradients(training, projections, step_batches(training.sources, step, lengths, starts, stage.tokens), number)
        found = torch.cat(
            [one.grad.flatten().double() for one in training.models[0].parameters() if one.grad is not None]
        )
        total, squares = total + found, squares + found.square().sum()
    mean = (total / len(order)).square().sum()
    # the mean of n noisy gradients is longer than the true one by an n-th of the variance
    variance = (squares - len(order) * mean) / (len(order) - 1)
    return float(variance / max(float(mean - variance / len(order)), 1e-30))
