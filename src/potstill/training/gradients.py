"""The gradients of one optimizer step: summed over micro-batches and ranks, then clipped."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import nn

from potstill.data.batches import MicroBatch
from potstill.models.hooks import listen
from potstill.models.kernels import TrainingKernels
from potstill.models.precision import autocast, in_float32
from potstill.signals import Batch
from potstill.system import interrupts, ranks
from potstill.system.randomness import mix, seed_torch
from potstill.training.setup import Projections, Training


def gradients(
    training: Training, projections: Projections, micro_batches: list[MicroBatch], step: int
) -> dict[str, float]:
    """Add the gradients of some micro-batches of a step to the parameters.

    Return the sum of each loss term over them, each as a share of its mean over the whole step.
    """
    accelerator = training.accelerator
    totals: dict[str, float] = {}
    for micro_batch in micro_batches:
        seed = mix(training.seed, training.number, step, micro_batch.place, "dropout")
        seed_torch(seed, accelerator.device)
        model, teacher = training.models[micro_batch.data], training.teachers[micro_batch.data]
        student_wants, teacher_wants = training.wants(micro_batch.data)
        batch = micro_batch.batch.to(accelerator.device)
        source = training.sources[micro_batch.data]
        answers = teacher.signals(batch, teacher_wants, live=source.needs_live_teacher(teacher_wants))
        if source.target_scale is not None and teacher_wants.logits:
            answers = replace(answers, logits=(answers.logits - source.target_scale.mean) / source.target_scale.sd)
        with (
            autocast(model, accelerator.device, training.precision, bool(student_wants.probabilities)),
            TrainingKernels(seed),
        ):
            signals = listen(model, batch.student, student_wants, projections)
        losses = training.method.losses(in_float32(signals), answers, batch)
        terms = {name: term.mean(batch.counts) for name, term in losses.items()}
        accelerator.backward(torch.stack(list(terms.values())).sum())
        for name, value in terms.items():
            totals[name] = totals.get(name, 0.0) + float(value.detach())
    return totals


def sum_over_ranks(network: nn.Module, totals: dict[str, float]) -> tuple[dict[str, float], int | None]:
    """Sum gradients, in place, and loss terms over all ranks; also return a signal that any rank received."""
    if ranks.count() == 1:
        return totals, interrupts.received()
    names = ranks.on_first(list)(totals)  # rank 0 always has a micro-batch
    received = [float(interrupts.received() == number) for number in interrupts.SIGNALS]
    sums = ranks.sum_gradients(network.parameters(), [*(totals.get(name, 0.0) for name in names), *received])
    signals = [number for number, times in zip(interrupts.SIGNALS, sums[len(names) :], strict=True) if times]
    return dict(zip(names, sums, strict=False)), signals[0] if signals else None


def clip_norm(accelerator: Accelerator, network: nn.Module, bound: float | None) -> float:
    """Scale the gradient to a norm of at most `bound`; return its norm before that."""
    parameters = [parameter for parameter in network.parameters() if parameter.grad is not None]
    return float(accelerator.clip_grad_norm_(parameters, math.inf if bound is None else bound))


def without_teacher(batch: Batch) -> Batch:
    """The same batch, to be learned from its labels alone."""
    taught, predictions = torch.zeros_like(batch.taught), torch.zeros_like(batch.taught_predictions)
    return replace(batch, taught=taught, taught_predictions=predictions)
