"""How fast this machine is: a few real batches are timed, short and long ones, and the others follow from their sizes.

Timing runs the same code as training, at a learning rate of zero: no weight changes, and the teacher's memory stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import MicroBatch, TokenisedSet
from potstill.inference.answers import answers, network
from potstill.models.generation.decoding import decoder
from potstill.models.inference import torch_forward
from potstill.models.student import Student
from potstill.runs.planning.batch_sizes import BatchRows, BatchSizes, batch_sizes, epoch_batches, parallel_seconds
from potstill.signals import Wants
from potstill.system.units import duration
from potstill.training.gradients import clip_norm, gradients
from potstill.training.optimizers import make_optimizer
from potstill.training.setup import Training, make_network
from potstill.training.teacher.teacher import Teacher
from potstill.training.used_rows import used_rows

DECODED_TEXTS = 32  # that are decoded to estimate the time of all
ENOUGH_SECONDS = 20.0  # of one kind of work, after which no further turn is taken


@dataclass(frozen=True)
class CostLaw:
    """The cost of a batch by its size: per_token · tokens + per_pair · tokens · length + per_batch."""

    per_token: float
    per_pair: float  # of tokens that attend to each other
    per_batch: float

    def of(self, sizes: BatchSizes) -> np.ndarray:
        """(batches,)"""
        pairs = sizes.tokens * sizes.lengths
        return np.asarray(self.per_token * sizes.tokens + self.per_pair * pairs + self.per_batch)


def fit_law(sizes: BatchSizes, costs: np.ndarray) -> CostLaw:
    """Fit a law with non-negative factors by least squares of the relative errors."""
    features = np.stack([sizes.tokens, sizes.tokens * sizes.lengths, np.ones(len(sizes))], 1)  # (batches, 3)
    scale = features.max(0)
    factors, _ = nnls(features / scale / np.maximum(costs, 1e-12)[:, None], np.ones(len(costs)))
    return CostLaw(*(factors / scale).tolist())


def batches_at(sizes: BatchSizes, by_tokens: Sequence[float], by_length: Sequence[float] = ()) -> np.ndarray:
    """The batches at these quantiles of tokens and of lengths, each once, the shortest first."""
    orders = [
        (np.lexsort((sizes.lengths, sizes.tokens)), by_tokens),
        (np.lexsort((sizes.tokens, sizes.lengths)), by_length),
    ]
    batches = np.unique([order[round(q * (len(order) - 1))] for order, quantiles in orders for q in quantiles])
    return np.asarray(batches[np.argsort(sizes.tokens[batches], kind="stable")])


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


def time_training(
    training: Training, batches: list[BatchRows], sizes: BatchSizes, turns: int, memory: bool
) -> TrainingCost:
    """Time real micro-batches in steps that change nothing. `memory`: also measure the bytes kept for the backward pass."""
    weights, projections = make_network(training)
    weights.train()
    device = training.accelerator.device
    with used_rows(training.stage.optimizer, weights, training.models[0], training.sources) as rows:
        optimizer = make_optimizer(training.stage.optimizer, training.models, projections)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        step_seconds: list[float] = []

        def backward(batch: BatchRows) -> None:
            source = training.sources[batch.data]
            counts = source.count(batch.positions)
            gradients(training, projections, [MicroBatch(0, batch.data, source.batch(batch.positions, counts, 0))], 0)

        def step() -> None:
            norm = clip_norm(training.accelerator, weights, training.stage.optimizer.clip)
            if math.isfinite(norm):  # zero times infinity would change a weight
                optimizer.step()
            synchronise(device)

        def train_batch(batch: BatchRows) -> None:
            optimizer.zero_grad(set_to_none=True)
            backward(batch)
            step_seconds.append(seconds_of(step))

        kept_bytes = np.zeros(len(batches))
        for number, batch in enumerate(batches if memory else ()):
            with saved_tensors(weights) as sizes_in_bytes:
                backward(batch)
            kept_bytes[number] = sum(sizes_in_bytes)
        seconds = median_seconds([partial(train_batch, batch) for batch in batches], turns)
        per_step = float(np.median(step_seconds[1:]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = sum(parameter.numel() for parameter in parameters if parameter.grad is not None)
        copied = 0 if rows.small is rows.whole else rows.small.numel()
        optimizer.zero_grad(set_to_none=True)
    law = fit_law(sizes, np.maximum(seconds - per_step, 0.1 * seconds))
    return TrainingCost(law, per_step, fit_law(sizes, kept_bytes) if memory else None, trained, copied)


@contextmanager
def saved_tensors(module: nn.Module) -> Iterator[list[int]]:
    """Bytes of each tensor that is kept for a backward pass, without parameters; views of one tensor count once."""
    sizes: list[int] = []
    seen = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            sizes.append(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes


def time_teacher(
    teacher: Teacher, wants: list[Wants], parts: list[TokenisedSet], batches: list[BatchRows], sizes: BatchSizes
) -> CostLaw:
    """Seconds of a batch that the teacher is asked live. `wants`: of each part."""
    live = Teacher(teacher.model, None, teacher.device)

    def ask(batch: BatchRows) -> None:
        part = parts[batch.data]
        live.signals(part.batch(batch.positions, part.count(batch.positions)), wants[batch.data])
        synchronise(live.device)

    return fit_law(sizes, median_seconds([partial(ask, batch) for batch in batches], 3))


def time_scoring(model: PreTrainedModel, source: TokenisedSet, batches: list[BatchRows], sizes: BatchSizes) -> CostLaw:
    """Seconds of a batch of dev or test, from rows to predictions."""
    parts = [replace(source, examples=source.examples.take(batch.positions)) for batch in batches]
    ask = network(torch_forward(model))
    return fit_law(sizes, median_seconds([partial(answers, ask, part) for part in parts], 2))


def time_decoding(student: Student, source: TokenisedSet, beams: Sequence[int]) -> float:
    """Seconds to decode all texts with each of these beams, estimated from a few texts.

    An untrained model does not know where to stop: it writes as many tokens as the gold texts have on average.
    """
    rows = source.examples.index
    every = np.arange(len(rows))
    few = source.examples.take(every[:: max(1, len(rows) // DECODED_TEXTS)][:DECODED_TEXTS])
    longest = max(1, round(float(source.task.predictions(source.student, rows).mean())))
    start = time.perf_counter()
    with decoder(student, longest=longest) as decode:
        texts = [text for text, _ in few.texts()]
        decode(texts[:1], 1, 1)
        loading = time.perf_counter() - start
        seconds = sum(seconds_of(partial(decode, texts, beam, 1)) for beam in beams)
    return loading + seconds * len(rows) / len(few)


def expected_time(training: Training, done: int) -> str:
    """A message about the remaining steps of a stage and their time, from two micro-batches of the first epoch."""
    batches = epoch_batches(training)
    sizes = batch_sizes(batches, training.sources)
    which = batches_at(sizes, (0.25, 0.75))
    cost = time_training(training, [batches[number] for number in which], sizes.take(which), turns=1, memory=False)
    per_epoch, steps = training.steps
    per_step = parallel_seconds(cost.batch.of(sizes), sizes, 1) / per_epoch + cost.step
    left = max(steps - done, 0)
    return f"{left} steps, about {duration(left * per_step)} and the time to score dev"


def matmul_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of a large matrix product, the best of ten."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def product() -> None:
        left @ right
        synchronise(device)

    return float(2.0 * size**3 / min(seconds_of(product) for _ in range(10)))


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
