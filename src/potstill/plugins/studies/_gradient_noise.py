"""How noisy the gradient of a finished run is. This module loads torch: import it inside a function."""

from __future__ import annotations

from pathlib import Path

import torch

from potstill.data.batches import all_lengths, epoch_order, step_batches
from potstill.measuring.run_folder import seed_folders
from potstill.models.student import load_student
from potstill.recipe.resolve import resolve
from potstill.runs.build import with_heads
from potstill.runs.prepare import DataSets, make_accelerator
from potstill.runs.stage_setup import Run, first_student, make_training, teacher_wants
from potstill.runs.teacher_knowledge import at_teachers_temperature
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.training.gradients import gradients
from potstill.training.setup import trained_network


def gradient_noise(run: Path, trained: bool, steps: int = 24) -> float:
    """Return the variance of a step's gradient over steps, summed over weights, divided by the squared norm of its mean.

    The method and the batches are those of the run's last stage; the weights are the student's first, or its last if
    `trained`.
    """
    first_seed = seed_folders(run)[0][1]
    recipe = resolve(RunFolder(first_seed).recipe).recipe
    accelerator, quiet = make_accelerator(recipe), Display(quiet=True)
    made = Run(recipe, DataSets(recipe, accelerator.device, quiet), run, accelerator, quiet)
    student, last = first_student(made), recipe.rounds[-1]
    student = with_heads(student, made.data_sets.of(last.stage, student.students[0]), recipe.seed)
    if trained:
        student.models[0].load_state_dict(load_student(first_seed / "student").model.state_dict())
    last = at_teachers_temperature(made, last)
    stage, training = last.stage, make_training(made, last, student)
    if not training.sources[0].changing:
        training.teachers[0].remember(training.sources[0], teacher_wants(training)[0])
    lengths, starts = all_lengths(training.sources)
    order = epoch_order(lengths, stage.batch, recipe.seed, 0, 0, "order")[:steps]
    with trained_network(training) as (network, projections):
        network.train()
        total = squares = torch.zeros(())
        for number, step in enumerate(order):
            network.zero_grad(set_to_none=True)
            gradients(
                training, projections, step_batches(training.sources, step, lengths, starts, stage.tokens), number
            )
            grads = [parameter.grad for parameter in training.models[0].parameters() if parameter.grad is not None]
            gradient = torch.cat([grad.flatten().double() for grad in grads])
            total, squares = total + gradient, squares + gradient.square().sum()
    mean = (total / len(order)).square().sum()
    # the squared norm of the mean of n noisy gradients exceeds the true one by an n-th of the variance
    variance = (squares - len(order) * mean) / (len(order) - 1)
    return float(variance / max(float(mean - variance / len(order)), 1e-30))
