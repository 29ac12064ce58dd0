"""How fast this machine is: a few real batches are timed, short and long ones, and all others follow by their sizes.

Nothing that is timed changes a weight, and nothing is remembered: the same code as in a run, at a learning rate of zero.
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
from potstill.models.inference import torch_run
from potstill.models.student import Student
from potstill.runs.planning.batch_sizes import Piece, Shapes, epoch_pieces, shapes_of, spread_out
from potstill.signals import Wants
from potstill.system.units import duration
from potstill.training.gradients import clip_norm, gradients
from potstill.training.optimizers import make_optimizer
from potstill.training.setup import Training, make_network
from potstill.training.teacher.teacher import Teacher
from potstill.training.used_rows import used_rows

WRITTEN = 32  # texts that are decoded to know how long all take
LONG_ENOUGH = 20.0  # seconds of one kind of work, after which no further turn is taken


@dataclass(frozen=True)
class Law:
    """What a batch costs by its size: per_token · tokens + per_pair · tokens · length + per_batch."""

    per_token: float
    per_pair: float  # of tokens that attend to each other
    per_batch: float

    def of(self, shapes: Shapes) -> np.ndarray:
        """(batches,)"""
        pairs = shapes.tokens * shapes.lengths
        return np.asarray(self.per_token * shapes.tokens + self.per_pair * pairs + self.per_batch)


def fitted(shapes: Shapes, found: np.ndarray) -> Law:
    """The law with the least squares of relative errors, and nothing below zero."""
    features = np.stack([shapes.tokens, shapes.tokens * shapes.lengths, np.ones(len(shapes))], 1)  # (batches, 3)
    scale = features.max(0)
    factors, _ = nnls(features / scale / np.maximum(found, 1e-12)[:, None], np.ones(len(found)))
    return Law(*(factors / scale).tolist())


def chosen(shapes: Shapes, by_tokens: Sequence[float], by_length: Sequence[float] = ()) -> np.ndarray:
    """Batches at these quantiles of tokens and of lengths, each once, the shortest first."""
    orders = [
        (np.lexsort((shapes.lengths, shapes.tokens)), by_tokens),
        (np.lexsort((shapes.tokens, shapes.lengths)), by_length),
    ]
    found = np.unique([order[round(q * (len(order) - 1))] for order, quantiles in orders for q in quantiles])
    return np.asarray(found[np.argsort(shapes.tokens[found], kind="stable")])


def timed(works: Sequence[Callable[[], None]], turns: int) -> np.ndarray:
    """(works,) middle seconds of each over the turns; the first is done once before, to warm up."""
    works[0]()
    spent: list[list[float]] = []
    begun = time.perf_counter()
    for _ in range(turns):
        spent.append([seconds_of(work) for work in works])
        if time.perf_counter() - begun > LONG_ENOUGH:
            break
    return np.asarray(np.median(spent, 0))


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@dataclass(frozen=True)
class TrainingCost:
    """Of one stage on this machine."""

    batch: Law  # seconds of a micro-batch, forward and backward
    step: float  # seconds of an optimiser step beside them
    kept: Law | None  # bytes that are kept of a micro-batch's forward pass for its backward pass
    trained: int  # parameters that have a gradient
    spare: int  # parameters of the word table that are held twice, since some rows of it alone are trained


def time_training(training: Training, pieces: list[Piece], shapes: Shapes, turns: int, count: bool) -> TrainingCost:
    """Real micro-batches of real rows, in steps that change nothing. `count`: also what is kept for the backward pass."""
    network, projections = make_network(training)
    network.train()
    device = training.accelerator.device
    with used_rows(training.stage.optimizer, network, training.models[0], training.sources) as rows:
        optimizer = make_optimizer(training.stage.optimizer, training.models, projections)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        of_steps: list[float] = []

        def backward(piece: Piece) -> None:
            _, owner, positions = piece
            source = training.sources[owner]
            gradients(
                training, projections, [MicroBatch(0, owner, source.batch(positions, source.count(positions), 0))], 0
            )

        def step() -> None:
            norm = clip_norm(training.accelerator, network, training.stage.optimizer.clip)
            if math.isfinite(norm):  # zero times infinity would change a weight
                optimizer.step()
            synchronised(device)

        def work(piece: Piece) -> None:
            optimizer.zero_grad(set_to_none=True)
            backward(piece)
            of_steps.append(seconds_of(step))

        kept = np.zeros(len(pieces))
        for place, piece in enumerate(pieces if count else ()):
            with saved(network) as told:
                backward(piece)
            kept[place] = sum(told)
        seconds = timed([lambda piece=piece: work(piece) for piece in pieces], turns)  # type: ignore[misc]
        of_step = float(np.median(of_steps[1:]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = sum(parameter.numel() for parameter in parameters if parameter.grad is not None)
        spare = 0 if rows.small is rows.whole else rows.small.numel()
        optimizer.zero_grad(set_to_none=True)
    law = fitted(shapes, np.maximum(seconds - of_step, 0.1 * seconds))
    return TrainingCost(law, of_step, fitted(shapes, kept) if count else None, trained, spare)


@contextmanager
def saved(module: nn.Module) -> Iterator[list[int]]:
    """Bytes of each tensor that is kept for a backward pass, parameters left out, views of one tensor counted once."""
    told: list[int] = []
    seen = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            told.append(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield told


def time_asking(
    teacher: Teacher, wants: list[Wants], parts: list[TokenisedSet], pieces: list[Piece], shapes: Shapes
) -> Law:
    """Seconds of a batch that the teacher is asked, live; `wants` are those of each part."""
    live = Teacher(teacher.model, None, teacher.device)

    def ask(piece: Piece) -> None:
        _, owner, positions = piece
        part = parts[owner]
        live.signals(part.batch(positions, part.count(positions)), wants[owner])
        synchronised(live.device)

    return fitted(shapes, timed([lambda piece=piece: ask(piece) for piece in pieces], 3))  # type: ignore[misc]


def time_scoring(model: PreTrainedModel, source: TokenisedSet, pieces: list[Piece], shapes: Shapes) -> Law:
    """Seconds of a batch of dev or test, from rows to answers."""
    parts = [replace(source, examples=source.examples.take(positions)) for _, _, positions in pieces]
    ask = network(torch_run(model))
    return fitted(shapes, timed([lambda part=part: answers(ask, part) for part in parts], 2))  # type: ignore[misc]


def time_writing(student: Student, source: TokenisedSet, beams: Sequence[int]) -> float:
    """Seconds of decoding all texts, by beams of these widths one after the other, from a few that are decoded.

    What is not trained yet does not know where to end: it writes as many tokens as the gold texts have on average.
    """
    rows = source.examples.index
    every = np.arange(len(rows))
    few = source.examples.take(every[:: max(1, len(rows) // WRITTEN)][:WRITTEN])
    longest = max(1, round(float(source.task.predictions(source.student, rows).mean())))
    begun = time.perf_counter()
    with decoder(student, longest=longest) as decode:
        texts = [text for text, _ in few.texts()]
        decode(texts[:1], 1, 1)
        ready = time.perf_counter() - begun
        seconds = sum(seconds_of(partial(decode, texts, beam, 1)) for beam in beams)
    return ready + seconds * len(rows) / len(few)


def estimate(training: Training) -> tuple[int, float]:
    """Steps of a stage, and about how many seconds they take: from two micro-batches of the first epoch."""
    pieces = epoch_pieces(training)
    shapes = shapes_of(pieces, training.sources)
    which = chosen(shapes, (0.25, 0.75))
    cost = time_training(training, [pieces[one] for one in which], shapes.take(which), turns=1, count=False)
    per_epoch, steps = training.steps
    return steps, steps * (spread_out(cost.batch.of(shapes), shapes, 1) / per_epoch + cost.step)


def expected_time(training: Training, done: int) -> str:
    """A message about the steps of a stage that are left and about how long they take."""
    steps, seconds = estimate(training)
    left = max(steps - done, 0)
    return f"{left} steps, about {duration(seconds * left / steps)} and the time to score dev"


def matmul_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of a large product, the best of ten."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def product() -> None:
        left @ right
        synchronised(device)

    return float(2.0 * size**3 / min(seconds_of(product) for _ in range(10)))


def synchronised(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
