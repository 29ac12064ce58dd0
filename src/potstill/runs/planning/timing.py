"""How fast this machine is: a few real batches are timed, short and long ones, and the others follow from their sizes.

Timing runs the same code as training, at a learning rate of zero: no weight changes, and the teacher's memory stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import MicroBatch, TokenisedSet
from potstill.data.examples import Examples
from potstill.data.making import Decode
from potstill.inference.answers import answers, logits_of
from potstill.models.compression.held import HeldWeights
from potstill.models.precision import synchronise
from potstill.runs.planning.batches import Batches, epoch_batches, parallel_seconds
from potstill.signals import Wants
from potstill.system.terminal import duration
from potstill.training.gradients import clip_norm, gradients
from potstill.training.optimizers import make_optimizer
from potstill.training.setup import Training, trained_network
from potstill.training.teacher.teacher import Teacher
from potstill.training.used_rows import used_rows

DECODED_TEXTS = 32  # that are decoded at most to estimate the time of all
ENOUGH_SECONDS = 20.0  # of one kind of work, after which no further turn is taken


@dataclass(frozen=True)
class CostLaw:
    """The cost of a batch by its size: per_token · tokens + per_pair · tokens · length + per_batch."""

    per_token: float
    per_pair: float  # of tokens that attend to each other
    per_batch: float

    def of(self, batches: Batches) -> np.ndarray:
        """(batches,)"""
        pairs = batches.tokens * batches.lengths
        return np.asarray(self.per_token * batches.tokens + self.per_pair * pairs + self.per_batch)


def fit_law(batches: Batches, costs: np.ndarray) -> CostLaw:
    """Fit a law with non-negative factors by least squares of the relative errors."""
    features = np.stack([batches.tokens, batches.tokens * batches.lengths, np.ones(len(batches))], 1)  # (batches, 3)
    scale = features.max(0)
    factors, _ = nnls(features / scale / np.maximum(costs, 1e-12)[:, None], np.ones(len(costs)))
    return CostLaw(*(factors / scale).tolist())


def median_seconds(tasks: Sequence[Callable[[], object]], turns: int) -> np.ndarray:
    """(tasks,) the median over turns. The first task is done once before, to warm up."""
    tasks[0]()
    turn_seconds: list[list[float]] = []
    start = time.perf_counter()
    for _ in range(turns):
        turn_seconds.append([seconds_of(task) for task in tasks])
        if time.perf_counter() - start > ENOUGH_SECONDS:
            break
    return np.asarray(np.median(turn_seconds, 0))


def seconds_of(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


@dataclass(frozen=True)
class TrainingCost:
    """The cost of training one stage on this machine."""

    batch: CostLaw  # seconds of a micro-batch, forward and backward
    step: float  # seconds of an optimizer step without its micro-batches
    activations: CostLaw | None  # bytes of a micro-batch that are kept for the backward pass; None: not measured
    trained: int  # parameters that have a gradient
    copied: int  # word embeddings that are held twice, since only the rows that occur are trained


def time_training(training: Training, batches: Batches, turns: int, memory: bool) -> TrainingCost:
    """Time real micro-batches in steps that change nothing. `memory`: also measure the bytes kept for the backward pass."""
    rows = list(zip(batches.data.tolist(), batches.positions, strict=True))
    held = HeldWeights(training.models)
    with (
        trained_network(training) as (weights, projections),
        used_rows(training.stage.optimizer, weights, training.models[0], training.sources, held) as embeddings,
    ):
        weights.train()
        optimizer = make_optimizer(training.stage.optimizer, training.models, projections)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        step_seconds: list[float] = []

        def backward(data: int, positions: np.ndarray) -> None:
            source = training.sources[data]
            batch = source.batch(positions, source.count(positions, 0), 0)
            gradients(training, projections, [MicroBatch(0, data, batch)], 0)

        def step() -> None:
            held.project()
            norm = clip_norm(training.accelerator, weights, training.stage.optimizer.clip)
            held.release()
            if math.isfinite(norm):  # zero times infinity would change a weight
                optimizer.step()
            held.settle()
            synchronise(training.accelerator.device)

        def train_batch(data: int, positions: np.ndarray) -> None:
            optimizer.zero_grad(set_to_none=True)
            backward(data, positions)
            step_seconds.append(seconds_of(step))

        activations = None
        if memory:
            kept_bytes = [saved_bytes(weights, partial(backward, *batch)) for batch in rows]
            activations = fit_law(batches, np.array(kept_bytes))
        seconds = median_seconds([partial(train_batch, *batch) for batch in rows], turns)
        held.release()  # the very bits from before
        per_step = float(np.median(step_seconds[1:]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = sum(parameter.numel() for parameter in parameters if parameter.grad is not None)
        copied = 0 if embeddings.small is embeddings.whole else embeddings.small.numel()
        optimizer.zero_grad(set_to_none=True)
    law = fit_law(batches, np.maximum(seconds - per_step, 0.1 * seconds))
    return TrainingCost(law, per_step, activations, trained, copied)


def saved_bytes(module: nn.Module, work: Callable[[], None]) -> int:
    """Bytes of the tensors that are kept for a backward pass, without parameters; views of one tensor count once."""
    sizes: dict[int, int] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return sum(sizes.values())


def time_teacher(teacher: Teacher, wants: list[Wants], parts: list[TokenisedSet], batches: Batches) -> CostLaw:
    """Seconds of a batch that the teacher is asked live. `wants`: of each part."""
    live = teacher.with_memory(None)

    def ask(part: int, positions: np.ndarray) -> None:
        live.signals(parts[part].batch(positions, parts[part].count(positions)), wants[part])
        synchronise(live.device)

    tasks = [partial(ask, part, positions) for part, positions in zip(batches.data, batches.positions, strict=True)]
    return fit_law(batches, median_seconds(tasks, 3))


def time_scoring(model: PreTrainedModel, source: TokenisedSet, batches: Batches, precision: str) -> CostLaw:
    """Seconds of a batch of dev or test, from rows to predictions."""
    parts = [replace(source, examples=source.examples.take(positions)) for positions in batches.positions]
    ask = logits_of(model, precision)
    return fit_law(batches, median_seconds([partial(answers, ask, part) for part in parts], 2))


def time_decoding(
    decoder: AbstractContextManager[Decode], examples: Examples, searches: Sequence[tuple[int, int]]
) -> float:
    """Seconds to decode all texts by each search (beam, hypotheses to return), estimated from a few texts."""
    few = examples.take(np.linspace(0, len(examples) - 1, min(DECODED_TEXTS, len(examples))).astype(np.int64))
    texts = [text for text, _ in few.texts()]
    start = time.perf_counter()
    with decoder as decode:
        loading = time.perf_counter() - start
        seconds = sum(seconds_of(partial(decode, texts, beam, best)) for beam, best in searches)
    return loading + seconds * len(examples) / len(few)


def expected_time(training: Training, done: int) -> str:
    """A message about the remaining steps of a stage and their time, from two micro-batches of the first epoch."""
    batches = epoch_batches(training)
    cost = time_training(training, batches.sample((0.25, 0.75)), turns=1, memory=False)
    per_epoch, steps = training.steps
    per_step = parallel_seconds(cost.batch.of(batches), batches.steps, 1) / per_epoch + cost.step
    left = max(steps - done, 0)
    return f"{left} steps, about {duration(left * per_step)} and the time to score dev"


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, the best of ten."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def product() -> None:
        left @ right
        synchronise(device)

    return float(2.0 * size**3 / min(seconds_of(product) for _ in range(10)))
