"""The one training loop: a generator of steps for every method and task.

Every micro-batch starts from its own seed, a function of (seed, stage, step, micro-batch), and every epoch's order is a
function of (seed, stage, epoch). No random state is stored, and a resumed run is the uninterrupted one, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import MicroBatch, TokenisedSet, all_lengths, epoch_order, step_batches, step_counts
from potstill.errors import InputError, TrainingError
from potstill.models.anatomy import layer_count, width, without_effect
from potstill.models.hooks import Bridges, listen
from potstill.recipe.schema import Stage
from potstill.signals import Batch
from potstill.system import interrupts, ranks
from potstill.system.randomness import mix
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint
from potstill.training.method import Method
from potstill.training.optimizers import UsedRows, make_optimizer, set_rate, used_rows
from potstill.training.target_scale import scale_outputs, unscale_outputs, unscaled_outputs
from potstill.training.teacher.teacher import Teacher


@dataclass(frozen=True)
class Training:
    """All that one stage's training follows from."""

    models: list[PreTrainedModel]  # one per data set; those after the first share its encoder
    teachers: list[Teacher]
    sources: list[TokenisedSet]
    method: Method
    stage: Stage
    seed: int
    number: int  # of the stage
    folder: Path  # checkpoints and the best weights
    accelerator: Accelerator
    score: Callable[[], dict[str, float]]  # on dev; the first is the one to choose by, higher is better
    save_every: int = 200
    to_pass: tuple[tuple[str, float], ...] = ()  # for each data set: a score on dev, and where its teacher falls silent


@dataclass(frozen=True)
class Step:
    """One optimiser step, as it is shown and logged."""

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
    dev: dict[str, float] = field(default_factory=dict)  # filled where an epoch ended


def train(training: Training, resume: Checkpoint | None = None) -> Generator[Step, None, float]:
    """Train in place, step by step. At the end the models hold the best epoch's weights by dev, or the last one's; returns its score.

    Between steps the word table may hold only the rows that occur in the training data; when the generator ends it is whole.
    """
    stage = training.stage
    bridges = make_bridges(training)
    network = nn.ModuleList([*training.models, bridges]).to(training.accelerator.device)
    for parameter in without_effect(training.models):
        parameter.requires_grad_(False)
    scales = [source.target_scale for source in training.sources]
    for model, scale in zip(training.models, scales, strict=True):
        if scale is not None:
            scale_outputs(model, scale)
    if resume:
        _fill(network, resume.tensors("weights"))
    with used_rows(stage.optimizer, network, training.models[0], training.sources) as rows:
        progress = yield from _steps(training, network, bridges, rows, resume)
    ranks.wait()  # the first has written the best
    if stage.keep == "best" and progress.best_step:
        try:
            best = checkpoints.load(training.folder / "best" / f"step-{progress.best_step:08d}")
        except InputError as error:  # the same command finds it lost, and trains the stage again
            raise TrainingError(f"{str(error).partition(';')[0]}; write the same command once more") from error
        _fill(network, best.tensors("weights"))
    if stage.keep == "average":
        _fill(network, mean_weights([one.tensors("weights") for one in checkpoints.whole(training.folder / "ends")]))
    for model, scale in zip(training.models, scales, strict=True):
        if scale is not None:
            unscale_outputs(model, scale)
    if stage.keep == "average":
        return float(next(iter(_dev_scores(network, training).values())))
    network.eval()
    return float(progress.best or 0.0) if stage.keep == "best" else float(progress.history[-1]["dev"])


def mean_weights(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of the ends of epochs, as translators are averaged; whole numbers are those of the last."""
    if not several:
        raise TrainingError("no end of an epoch was kept to be averaged; begin anew with --overwrite")
    return {
        name: torch.stack([one[name].double() for one in several]).mean(0).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in several[-1].items()
    }


@ranks.on_first
def _dev_scores(network: nn.Module, training: Training) -> dict[str, float]:
    network.eval()
    return training.score()


def steps_of(stage: Stage, rows: int) -> tuple[int, int]:
    """Optimiser steps of an epoch, and of all epochs."""
    per_epoch = math.ceil(rows / stage.batch)
    return per_epoch, math.ceil(stage.passes * per_epoch)


def _steps(
    training: Training, network: nn.Module, bridges: Bridges, rows: UsedRows, resume: Checkpoint | None
) -> Generator[Step, None, Progress]:
    stage, accelerator = training.stage, training.accelerator
    optimizer = make_optimizer(stage.optimizer, training.models, bridges)
    prepared = accelerator.prepare_optimizer(optimizer)
    lengths, starts = all_lengths(training.sources)
    per_epoch, steps = steps_of(stage, len(lengths))
    progress = Progress()
    if resume:
        progress = Progress(**resume.state["progress"])
        # under no name: what is mapped from the checkpoint's file keeps its room on the disk while anything holds it
        checkpoints.restore_optimizer(
            optimizer, rows.gather(optimizer, resume.tensors("optimizer")), resume.state["optimizer"]
        )
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(resume.state["scaler"])

    saved = False

    def save() -> None:
        nonlocal saved
        if saved and not training.folder.is_dir():  # told now and not at the end, when all of it would be lost
            raise TrainingError(f"{training.folder} was removed while the run went on; write the command once more")
        saved = True
        tensors, meta = checkpoints.optimizer_tensors(optimizer)
        scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else None
        state = {"progress": vars(progress), "optimizer": meta, "scaler": scaler}
        with rows.set_aside():
            groups = {"weights": _weights(network), "optimizer": rows.spread(optimizer, tensors)}
            checkpoints.save(training.folder / "checkpoints", progress.step, groups, state)
        checkpoints.rotate(training.folder / "checkpoints", keep=1)

    network.train()
    order: list[np.ndarray] = []
    while progress.step < steps and not progress.stopped:
        epoch, place = divmod(progress.step, per_epoch)
        if not order or place == 0:
            order = epoch_order(lengths, stage.batch, training.seed, training.number, epoch, "order")
        begun = time.perf_counter()
        rate = set_rate(optimizer, stage.optimizer, progress.step, steps)
        mine = step_batches(
            training.sources, order[place], lengths, starts, stage.tokens, ranks.number(), ranks.count(), epoch
        )
        silent = surpassed(training, progress.history)
        mine = [replace(part, batch=untaught(part.batch)) if part.data in silent else part for part in mine]
        terms, asked = together(network, gradients(training, bridges, mine, progress.step))
        loss = sum(terms.values())
        if not math.isfinite(loss):
            raise TrainingError(
                f"step {progress.step + 1}: the loss is {loss} ({terms}); nothing of this step was kept. Lower optimizer.rate, or look at the rows"
            )
        norm = clip_norm(accelerator, network, stage.optimizer.clip)
        if accelerator.scaler is None and not math.isfinite(norm):
            raise TrainingError(
                f"step {progress.step + 1}: the gradient's norm is {norm}; nothing of this step was kept. Lower optimizer.rate"
            )
        prepared.step()
        if not prepared.step_was_skipped:
            rows.decay(rate * stage.optimizer.weight_decay)
        prepared.zero_grad(set_to_none=True)
        progress.step += 1
        spent = time.perf_counter() - begun

        dev: dict[str, float] = {}
        if progress.step % per_epoch == 0 or progress.step == steps:
            with rows.set_aside():
                with unscaled_outputs(training.models, [source.target_scale for source in training.sources]):
                    dev = _dev_scores(network, training)
                network.train()
                if progress.note(next(iter(dev.values())), stage.patience) and ranks.is_first():
                    checkpoints.save(training.folder / "best", progress.step, {"weights": _weights(network)}, {})
                if stage.keep == "average" and ranks.is_first():
                    checkpoints.save(training.folder / "ends", progress.step, {"weights": _weights(network)}, {})
                    checkpoints.rotate(training.folder / "ends", keep=stage.averaged)
            progress.history.append({"epoch": epoch + 1, "step": progress.step, **dev})
        # told before it is saved: a log that is ahead of the checkpoint can be cut back, one behind it has a hole
        counts = step_counts(training.sources, order[place], starts)
        yield Step(
            progress.step, steps, epoch + 1, loss, terms, norm, rate, len(order[place]), counts["tokens"], spent, dev
        )
        if ranks.count() == 1:  # also one that came since
            asked = interrupts.asked()
        if (dev or asked or progress.step % training.save_every == 0) and ranks.is_first():
            save()
            if progress.best_step:
                checkpoints.rotate(training.folder / "best", keep=1, best=progress.best_step)
        if asked:
            ranks.wait()
            raise interrupts.Interrupted(asked)
    return progress


@dataclass
class Progress:
    """What a resumed run must know of the past besides tensors."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    epochs_without_gain: int = 0
    stopped: bool = False
    history: list[dict[str, float]] = field(default_factory=list)  # what dev showed after each epoch

    def note(self, score: float, patience: int | None) -> bool:
        """Take an epoch's score; True where it is the best so far.

        Of equal scores the later epoch is kept: it has learned for longer, where an early one may have said the most
        frequent class to all. Patience is for gains, and an equal score is none.
        """
        gained = self.best is None or score > self.best
        better = gained or score == self.best
        if better:
            self.best, self.best_step = score, self.step
        self.epochs_without_gain = 0 if gained else self.epochs_without_gain + 1
        self.stopped = patience is not None and self.epochs_without_gain >= patience
        return better


def surpassed(training: Training, history: list[dict[str, float]]) -> set[int]:
    """Data sets whose teacher the student passed at the end of the last epoch (Tan et al., 2019, arXiv:1902.10461)."""
    if not history:
        return set()
    return {number for number, (score, bound) in enumerate(training.to_pass) if history[-1][score] > bound}


def untaught(batch: Batch) -> Batch:
    """To be learned from its targets alone."""
    taught, predictions = torch.zeros_like(batch.taught), torch.zeros_like(batch.taught_predictions)
    return replace(batch, taught=taught, taught_predictions=predictions)


def gradients(training: Training, bridges: Bridges, parts: list[MicroBatch], step: int) -> dict[str, float]:
    """Gradients of some parts of one optimiser step, added into the parameters; returns each term's sum over them, as
    shares of its mean over the whole step."""
    accelerator = training.accelerator
    totals: dict[str, float] = {}
    for part in parts:
        torch.manual_seed(mix(training.seed, training.number, step, part.place, "dropout"))
        model, teacher = training.models[part.data], training.teachers[part.data]
        ours, theirs = training.method.wants(layer_count(model), teacher_layers(teacher, model))
        batch = part.batch.to(accelerator.device)
        source = training.sources[part.data]
        answers = teacher.signals(batch, theirs, live=source.needs_live_teacher(theirs))
        if source.target_scale is not None and theirs.logits:
            answers = replace(answers, logits=(answers.logits - source.target_scale.mean) / source.target_scale.sd)
        with accelerator.autocast():
            heard = listen(model, batch.student, ours, bridges)
            terms = {
                name: term.mean(batch.counts) for name, term in training.method.losses(heard, answers, batch).items()
            }
        accelerator.backward(torch.stack(list(terms.values())).sum())
        for name, value in terms.items():
            totals[name] = totals.get(name, 0.0) + float(value.detach())
    return totals


def together(network: nn.Module, totals: dict[str, float]) -> tuple[dict[str, float], int | None]:
    """The whole step of what each rank has: gradients in place, each term's mean, and a signal that any rank was sent."""
    if ranks.count() == 1:
        return totals, interrupts.asked()
    names = ranks.from_first(list(totals))  # the first rank always has a part
    asked = [float(interrupts.asked() == number) for number in interrupts.NOTED]
    summed = ranks.sum_gradients(network.parameters(), [*(totals.get(name, 0.0) for name in names), *asked])
    sent = [number for number, times in zip(interrupts.NOTED, summed[len(names) :], strict=True) if times]
    return dict(zip(names, summed, strict=False)), sent[0] if sent else None


def teacher_layers(teacher: Teacher, model: PreTrainedModel) -> int:
    """Of a teacher that is a file of answers there are none; its methods ask for logits alone."""
    return layer_count(teacher.model) if teacher.model is not None else layer_count(model)


def make_bridges(training: Training) -> Bridges:
    model, teacher = training.models[0], training.teachers[0]
    ours, _ = training.method.wants(layer_count(model), teacher_layers(teacher, model))
    theirs = width(teacher.model) if teacher.model is not None else width(model)
    return Bridges(ours, width(model), theirs, mix(training.seed, training.number, "bridges"))


def clip_norm(accelerator: Accelerator, network: nn.Module, bound: float | None) -> float:
    parameters = [parameter for parameter in network.parameters() if parameter.grad is not None]
    return float(accelerator.clip_grad_norm_(parameters, math.inf if bound is None else bound))


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers, each once though models may share them."""
    kept: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach()
    return kept


def _fill(network: nn.Module, saved: dict[str, Tensor]) -> None:
    ours = _weights(network)
    if ours.keys() != saved.keys():
        raise TrainingError(
            "the checkpoint belongs to another student or method; write --resume never --overwrite to begin anew"
        )
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(saved[name])
