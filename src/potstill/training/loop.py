"""The one training loop: a generator of steps for every method and task.

Every micro-batch starts from its own seed, a function of (seed, stage, step, micro-batch), and the order of an epoch is a
function of (seed, stage, epoch). No random state is stored: a resumed run equals an uninterrupted one, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import MicroBatch, TargetScale, all_lengths, epoch_order, step_batches, step_counts
from potstill.errors import InputError, TrainingError
from potstill.models.compression.held import HeldWeights
from potstill.system import interrupts, ranks
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint, step_name
from potstill.training.gradients import clip_norm, gradients, sum_over_ranks, without_teacher
from potstill.training.optimizers import BoundedNorms, make_optimizer, set_rate
from potstill.training.setup import Projections, Training, trained_network
from potstill.training.target_scale import scale_outputs, unscale_outputs, unscaled_outputs
from potstill.training.used_rows import UsedRows, used_rows

HELD = "held"  # the group of tensors in a checkpoint that says which weights are kept zero or equal


@dataclass(frozen=True)
class Step:
    """One optimizer step, as it is shown and logged."""

    step: int  # counted from 1
    steps: int
    epoch: int
    loss: float
    terms: dict[str, float]
    gradient_norm: float
    rate: float
    examples: int
    tokens: int
    seconds: float
    dev: dict[str, float] = field(
        default_factory=dict
    )  # filled where dev is scored: at the end of an epoch, or of several


def train(training: Training, resume: Checkpoint | None = None) -> Steps:
    """The steps of a stage, which trains its models in place.

    `for step in train(training): …` takes them one by one: whoever iterates decides when to go on. After the last step the
    models hold the weights that `keep` chooses. Between steps the word embeddings may hold only the rows that occur in
    the training data (`used_rows`).
    """
    return Steps(training, resume)


class DivergedError(TrainingError):
    """The loss or its gradient is not a finite number."""


class Steps(Iterator[Step]):
    """A stage in training, as an iterator. `close` leaves it, to be resumed."""

    def __init__(self, training: Training, resume: Checkpoint | None) -> None:
        self.training = training
        self.dev: float | None = None  # the dev score of the weights that were kept; None before the end
        self.rewound: list[dict[str, Tensor]] = []  # of each model, its weights at the step that later rounds rewind to
        self._loop: StageLoop | None = None
        self._steps = self._run(resume)

    def __next__(self) -> Step:
        return next(self._steps)

    def stop(self) -> None:
        """Let the next step be the last one: dev is scored, and the weights that `keep` chooses are the result. Every rank must call it."""
        if self._loop is not None:
            self._loop.end = min(self._loop.end, self._loop.progress.step + 1)

    def close(self) -> None:
        self._steps.close()

    def _run(self, resume: Checkpoint | None) -> Generator[Step, None, None]:
        training = self.training
        with trained_network(training) as (network, projections):
            models = zip(training.models, training.target_scales, strict=True)
            scales = [(model, scale) for model, scale in models if scale is not None]
            for model, scale in scales:
                scale_outputs(model, scale)
            held = HeldWeights(training.models, resume.tensors(HELD) if resume and resume.has(HELD) else None)
            if resume:
                _load_weights(network, resume.tensors("weights"))
            with used_rows(training.stage.optimizer, network, training.models[0], training.sources, held) as rows:
                self._loop = loop = StageLoop(training, network, projections, rows, held)
                if resume:
                    loop.restore(resume)
                yield from loop.run()
            ranks.wait()  # until rank 0 has written the best weights
            self.rewound = _rewound(training, network)
            self.dev = _end(training, network, held, loop.progress, scales)


def _end(
    training: Training,
    network: nn.Module,
    held: HeldWeights,
    progress: Progress,
    scales: list[tuple[PreTrainedModel, TargetScale]],
) -> float:
    """Load the weights that `keep` chooses; return their dev score."""
    keep = training.stage.keep
    if keep == "best" and progress.best_step:
        _load_weights(network, _saved_weights(training, "best", progress.best_step))
    if keep == "average":
        ends = checkpoints.all_intact(training.folder / "ends")
        _load_weights(network, mean_weights([checkpoint.tensors("weights") for checkpoint in ends]))
        held.settle()  # a mean of rounded weights is not rounded
    for model, scale in scales:
        unscale_outputs(model, scale)
    if keep == "average":
        return next(iter(_dev_scores(training, network).values()))
    network.eval()
    return float(progress.best or 0.0) if keep == "best" else float(progress.history[-1]["dev"])


def _rewound(training: Training, network: nn.Module) -> list[dict[str, Tensor]]:
    """The weights of each model at the step that later rounds rewind to, in the unit of the rows."""
    if training.keeps_step is None:
        return []
    last = {name: tensor.clone() for name, tensor in _weights(network).items()}
    _load_weights(network, _saved_weights(training, "rewind", training.keeps_step))
    with unscaled_outputs(training.models, training.target_scales):
        rewound = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in training.models]
    _load_weights(network, last)
    return rewound


class StageLoop:
    """A stage in training: the network, its optimizer, and how far it has come."""

    def __init__(
        self, training: Training, network: nn.Module, projections: Projections, rows: UsedRows, held: HeldWeights
    ) -> None:
        self.training, self.network, self.projections, self.rows, self.held = training, network, projections, rows, held
        self.optimizer = make_optimizer(training.stage.optimizer, training.models, projections)
        self.norms = BoundedNorms(training.models, training.stage.optimizer.max_norm)
        self.accelerated = training.accelerator.prepare_optimizer(self.optimizer)  # in float16 it may skip a step
        self.lengths, self.starts = all_lengths(training.sources)
        self.steps_per_epoch, self.steps = training.steps
        self.end = self.steps  # a smaller number ends the stage early, and the learning rate stays as it was planned
        self.progress = Progress()
        self.saved_before = False

    def run(self) -> Generator[Step, None, None]:
        progress = self.progress
        order: list[np.ndarray] = []
        self.network.train()
        self.keep_step()
        while progress.step < self.end and not progress.stopped:
            epoch, place = divmod(progress.step, self.steps_per_epoch)
            if not order or place == 0:
                seed = self.training.seed, self.training.number, epoch, "order"
                order = epoch_order(self.lengths, self.training.stage.batch, *seed)
            step, signal = self.take_step(epoch, order[place])
            if progress.step % self.training.score_every == 0 or progress.step == self.end:
                step = replace(step, dev=self.end_epoch(epoch))
            self.keep_step()
            yield step  # logged before it is saved: a log ahead of the checkpoint is cut back, one behind it has a gap
            if ranks.count() == 1:
                signal = interrupts.received()  # also one that came while the step was logged
            if (step.dev or signal or progress.step % self.training.save_every == 0) and ranks.is_first():
                self.save()
            if signal:
                ranks.wait()
                raise interrupts.Interrupted(signal)

    def take_step(self, epoch: int, examples: np.ndarray) -> tuple[Step, int | None]:
        """Take one optimizer step on these examples; also return a signal that asks the run to stop."""
        begun = time.perf_counter()
        settings, progress = self.training.stage.optimizer, self.progress
        rate = set_rate(self.optimizer, settings, progress.step, self.steps)
        totals = gradients(self.training, self.projections, self.micro_batches(epoch, examples), progress.step)
        terms, signal = sum_over_ranks(self.network, totals)
        loss, number = sum(terms.values()), progress.step + 1
        if not math.isfinite(loss):
            raise DivergedError(
                f"step {number}: the loss is {loss} ({terms}); this step was discarded. "
                "Lower optimizer.rate, or check the rows"
            )
        self.held.project()
        norm = clip_norm(self.training.accelerator, self.network, settings.clip)
        if self.training.accelerator.scaler is None and not math.isfinite(norm):
            raise DivergedError(
                f"step {number}: the norm of the gradient is {norm}; this step was discarded. Lower optimizer.rate"
            )
        self.held.release()
        self.accelerated.step()
        if not self.accelerated.step_was_skipped:
            self.rows.decay(rate * settings.weight_decay)
            self.norms.settle()
        self.held.settle()
        self.accelerated.zero_grad(set_to_none=True)
        progress.step = number
        spent = time.perf_counter() - begun
        tokens = step_counts(self.training.sources, examples, self.starts, epoch)["tokens"]
        return Step(number, self.steps, epoch + 1, loss, terms, norm, rate, len(examples), tokens, spent), signal

    def micro_batches(self, epoch: int, examples: np.ndarray) -> list[MicroBatch]:
        """The micro-batches of this rank. A data set whose teacher the student has surpassed is learned from labels alone."""
        tokens, rank = self.training.stage.tokens, (ranks.number(), ranks.count())
        parts = step_batches(self.training.sources, examples, self.lengths, self.starts, tokens, *rank, epoch)
        silent = surpassed(self.training, self.progress.history)
        return [replace(part, batch=without_teacher(part.batch)) if part.data in silent else part for part in parts]

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Score dev, and save the weights if this epoch is the best so far or is to be averaged."""
        training, progress = self.training, self.progress
        with self.rows.set_aside():
            with unscaled_outputs(training.models, training.target_scales):
                dev = _dev_scores(training, self.network)
            self.network.train()
            closer = dev.get(training.patient_on) if training.patient_on else None
            is_best = progress.note(next(iter(dev.values())), training.stage.patience, closer)
            if ranks.is_first():
                weights = {"weights": _weights(self.network)}
                if is_best:
                    checkpoints.save(training.folder / "best", progress.step, weights, {})
                if training.stage.keep == "average":
                    checkpoints.save(training.folder / "ends", progress.step, weights, {})
                    checkpoints.rotate(training.folder / "ends", keep=training.stage.averaged)
        progress.history.append({"epoch": epoch + 1, "step": progress.step, **dev})
        return dev

    def keep_step(self) -> None:
        """Save the weights of the step that later rounds rewind to."""
        if self.progress.step == self.training.keeps_step and ranks.is_first():
            with self.rows.set_aside():
                weights = {"weights": _weights(self.network)}
                checkpoints.save(self.training.folder / "rewind", self.progress.step, weights, {})

    def save(self) -> None:
        folder, scaler = self.training.folder, self.training.accelerator.scaler
        if self.saved_before and not folder.is_dir():  # better now than at the end, when all the work would be lost
            raise TrainingError(f"{folder} was removed while the run went on; run the same command again")
        self.saved_before = True
        tensors, meta = checkpoints.optimizer_tensors(self.optimizer)
        state = {
            "progress": vars(self.progress),
            "optimizer": meta,
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
        with self.rows.set_aside():
            groups = {"weights": _weights(self.network), "optimizer": self.rows.spread(self.optimizer, tensors)}
            if held := self.held.tensors():
                groups[HELD] = held
            checkpoints.save(folder / "checkpoints", self.progress.step, groups, state)
        checkpoints.rotate(folder / "checkpoints", keep=1)
        if self.progress.best_step:
            checkpoints.rotate(folder / "best", keep=1, best=self.progress.best_step)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore everything but the weights."""
        self.progress = Progress(**checkpoint.state["progress"])
        # the tensors get no name here: as long as anything refers to the mapped file, it takes room on the disk
        checkpoints.restore_optimizer(
            self.optimizer,
            self.rows.gather(self.optimizer, checkpoint.tensors("optimizer")),
            checkpoint.state["optimizer"],
        )
        if self.training.accelerator.scaler is not None:
            self.training.accelerator.scaler.load_state_dict(checkpoint.state["scaler"])


@dataclass
class Progress:
    """What a resumed run must know besides tensors."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    closest: float | None = None  # the smallest distance to the teacher so far
    epochs_without_gain: int = 0
    stopped: bool = False
    history: list[dict[str, float]] = field(default_factory=list)  # dev scores after each epoch

    def note(self, score: float, patience: int | None, distance: float | None = None) -> bool:
        """Take the dev score of an epoch; return True if it is the best so far.

        Of equal scores the later epoch is kept: it has trained longer, and an early one may predict the most frequent
        class for every row. For `patience`, an equal score is no gain; where the distance to a teacher is measured, coming
        closer is a gain, which few rows show with less noise.
        """
        gained = self.best is None or score > self.best
        better = gained or score == self.best
        if better:
            self.best, self.best_step = score, self.step
        if distance is not None:
            gained = self.closest is None or distance < self.closest
            self.closest = distance if gained else self.closest
        self.epochs_without_gain = 0 if gained else self.epochs_without_gain + 1
        self.stopped = patience is not None and self.epochs_without_gain >= patience
        return better


def surpassed(training: Training, history: list[dict[str, float]]) -> set[int]:
    """Data sets whose teacher the student surpassed in the last epoch (Tan et al., 2019, arXiv:1902.10461)."""
    if not history:
        return set()
    return {data for data, (score, bound) in enumerate(training.to_pass) if history[-1][score] > bound}


@ranks.on_first
def _dev_scores(training: Training, network: nn.Module) -> dict[str, float]:
    network.eval()
    return training.score()


def _saved_weights(training: Training, kind: str, step: int) -> dict[str, Tensor]:
    try:
        return checkpoints.load(training.folder / kind / step_name(step)).tensors("weights")
    except InputError as error:  # the same command finds them lost, and trains the stage again
        raise TrainingError(f"{str(error).partition(';')[0]}; run the same command again") from error


def mean_weights(epochs: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the weights of several epochs, as is usual for translation models; integers are those of the last."""
    if not epochs:
        raise TrainingError("no epoch was saved to be averaged; start again with --overwrite")
    return {
        name: torch.stack([weights[name].double() for weights in epochs]).mean(0).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in epochs[-1].items()
    }


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once though models may share them."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def _load_weights(network: nn.Module, saved: dict[str, Tensor]) -> None:
    weights = _weights(network)
    if weights.keys() != saved.keys():
        raise TrainingError(
            "the checkpoint belongs to another student or method; write --resume never --overwrite to start again"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(saved[name])
