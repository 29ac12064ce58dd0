"""Find the learning rate of a stage: short trainings by successive halving, compared on dev (Jamieson & Talwalkar, 2016).

Every rate is tried for a few steps, and the better half again for twice as many. Each trial starts from the stage's first
weights and has a warm-up and a decay of its own, so that a high rate is not judged by the noise in the middle of a
training. All trials read the same rows in the same order, and the teacher's answers are in its memory.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from potstill.errors import TrainingError
from potstill.runs.build import StudentModels
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.files import write_atomically
from potstill.training.loop import DivergedError, train
from potstill.training.setup import Scores, Training

RUNGS = (1 / 24, 1 / 12)  # of the stage's steps: four rates, then two, cost a third of it
LEAST_STEPS = 600  # of a stage: fewer leave a trial too few to tell rates apart
NO_REASON = 0.01  # of the lowest loss: where a task is hard, short trials end alike, and their order would be chance
NOTES = "rates.json"  # in the stage's folder: the trials that are finished
NEVER = 2**62  # steps between checkpoints: a trial is short, and one that was killed is repeated


@dataclass(frozen=True)
class Trial:
    """A learning rate that was tried for some steps, and its loss; None if the training diverged."""

    rate: float
    steps: int
    loss: float | None


def with_best_rate(
    training: Training, student: StudentModels, key: str, display: Display
) -> tuple[Training, list[Trial]]:
    """The training with the best of the stage's rates, and all trials. `key`: of the stage's result, which the trials help to
    make. Without rates to try, or with few steps, the training is as it was."""
    optimizer, steps = training.stage.optimizer, training.steps[1]
    if not search_steps(optimizer.rates or [], steps):
        return training, []
    notes = Notes(training.folder, key)
    weights = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in student.models]
    rates: Sequence[float] = list(optimizer.rates or [])
    plans = rungs(len(rates), steps)
    named = ", ".join(f"{rate:g}" for rate in rates)
    with display.bar(f"trying the learning rates {named}", search_steps(rates, steps), "step") as bar:
        for count, length in plans:
            for rate in rates[:count]:
                if notes.find(rate, length) is None:
                    notes.add(Trial(rate, length, loss_of_trial(training, student, weights, rate, length, bar.advance)))
                else:
                    bar.advance(length)
            rates = ranked(rates[:count], [notes.loss(rate, length) for rate in rates[:count]], optimizer.full_rate)
    if math.isinf(notes.loss(rates[0], plans[-1][1])):
        raise TrainingError(
            f"the training diverged at each of the learning rates {named}; write a lower one: --rate {min(rates) / 10:g}"
        )
    display.say(f"learning rate: {rates[0]:g}, the best of {named} on dev after {plans[-1][1]} steps")
    chosen = training.stage.model_copy(
        update={"optimizer": optimizer.model_copy(update={"rate": rates[0], "rates": []})}
    )
    return replace(training, stage=chosen), notes.trials


def ranked(rates: Sequence[float], losses: Sequence[float], usual: float) -> list[float]:
    """Rates from the best to the worst. Losses within a hundredth of the lowest are no reason to leave the usual rate: of such
    rates the one nearest to it comes first."""
    bound = min(losses) + NO_REASON * abs(min(losses))
    order = sorted(zip(losses, rates, strict=True))
    alike = [rate for loss, rate in order if loss <= bound]
    return sorted(alike, key=lambda rate: abs(math.log(rate / usual))) + [rate for loss, rate in order if loss > bound]


def search_steps(rates: Sequence[float], steps: int) -> int:
    """The steps of all trials before a stage of so many steps; 0 if none is made."""
    if len(rates) < 2 or steps < LEAST_STEPS:
        return 0
    return sum(count * length for count, length in rungs(len(rates), steps))


def rungs(rates: int, steps: int) -> list[tuple[int, int]]:
    """How many rates are tried for how many steps each: of four rates all for a 24th of the stage's, and two for a 12th."""
    counts = [max(2, rates // 2**place) for place in range(len(RUNGS))]
    return [(count, max(1, round(share * steps * 4 / rates))) for count, share in zip(counts, RUNGS, strict=True)]


def loss_of_trial(
    training: Training,
    student: StudentModels,
    weights: Sequence[dict[str, Tensor]],
    rate: float,
    steps: int,
    advance: Callable[[int], None],
) -> float | None:
    """Train for some steps at a rate and return the loss on dev, or that of the last steps where the method trains no head;
    None if the training diverged. The student has its first weights again afterwards."""
    folder, late = training.folder / "trial", []
    optimizer = training.stage.optimizer.model_copy(update={"rate": rate, "rates": []})
    short = {"epochs": steps / training.steps[0], "min_steps": 0, "keep": "last", "patience": None, "rewind": None}
    stage = training.stage.model_copy(update={"optimizer": optimizer, **short})
    has_head = training.wants(0)[0].logits
    has_score = has_head and training.score.has_rows
    score = TrialLoss(training.score) if has_score else NoScore()
    alone = replace(training, save_every=NEVER, to_pass=(), patient_on=None, scored_within=False)
    trial = train(replace(alone, stage=stage, folder=folder, score=score))
    try:
        for step in trial:
            advance(1)
            if step.step > steps * 2 / 3:
                late.append(step.loss)
    except DivergedError:
        return None
    finally:
        for model, first in zip(student.models, weights, strict=True):
            model.load_state_dict(first)
            model.zero_grad()  # a training that diverged leaves gradients, which the next one would add to
        ranks.on_first(shutil.rmtree)(folder, ignore_errors=True)
    assert trial.dev is not None
    return -trial.dev if has_score else sum(late) / len(late)


class NoScore:
    """Nothing is scored at the end of a trial."""

    has_rows = False

    def __call__(self) -> dict[str, float]:
        return {"dev": 0.0}

    def remember(self) -> None: ...

    def loss(self) -> float:
        return 0.0


class TrialLoss(NoScore):
    """The dev score of a trial: how low its loss is."""

    def __init__(self, whole: Scores) -> None:
        self.whole = whole

    def __call__(self) -> dict[str, float]:
        loss = self.whole.loss()
        if not math.isfinite(loss):  # the last step may do it, which no later one would notice
            raise DivergedError("the loss on dev is not a number")
        return {"dev": -loss}


class Notes:
    """The trials of a stage that are finished, on disk: a killed search goes on behind the last one."""

    def __init__(self, folder: Path, key: str) -> None:
        self.file, self.key = folder / NOTES, key
        self.trials = [Trial(**each) for each in _read_notes(self.file, key)]

    def loss(self, rate: float, steps: int) -> float:
        """Infinite for a training that diverged."""
        trial = self.find(rate, steps)
        return math.inf if trial is None or trial.loss is None else trial.loss

    def find(self, rate: float, steps: int) -> Trial | None:
        return next((trial for trial in self.trials if (trial.rate, trial.steps) == (rate, steps)), None)

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        if ranks.is_first():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            noted = {"key": self.key, "trials": [asdict(each) for each in self.trials]}
            write_atomically(self.file, json.dumps(noted).encode())


@ranks.on_first
def _read_notes(file: Path, key: str) -> list[dict[str, Any]]:
    """The trials of an earlier process, if they are of the same stage."""
    try:
        noted = json.loads(file.read_bytes())
        return list(noted["trials"]) if noted["key"] == key else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
