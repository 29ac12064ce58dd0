"""What a person sees while a run goes on, and the logs it leaves: steps.csv, epochs.csv, TensorBoard where asked for."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from potstill.calibration import estimate
from potstill.checkpoints import Checkpoint
from potstill.errors import InputError
from potstill.files import disk_errors, write_atomically
from potstill.training import Step, Training
from potstill.wording import in_words


class Bar:
    """A progress bar that only knows how to go on."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def advance(self, count: int) -> None:
        self.bar.update(count)


class Display:
    """Words and bars on standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            tqdm.write(text, file=sys.stderr)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        """Shown at its first advance only: where all is known already, nothing flickers."""
        with tqdm(
            total=total, desc=label, unit="row", disable=self.quiet, leave=False, delay=0.5, file=sys.stderr
        ) as bar:
            yield Bar(bar)

    def expect(self, training: Training, done: int) -> None:
        """Say how long it will take, before it begins."""
        if not self.quiet:
            steps, seconds = estimate(training)
            left = max(steps - done, 0)
            self.say(f"{left} steps, about {in_words(seconds * left / steps)} and the time to score dev")

    def follow(
        self, steps: Generator[Step, None, float], folder: Path, resume: Checkpoint | None, tracker: str
    ) -> float:
        """Exhaust the steps, showing and logging each; returns what the training returns: the kept weights' score on dev."""
        folder.mkdir(parents=True, exist_ok=True)
        told = resume.step if resume else 0
        history = resume.state["progress"]["history"] if resume else []
        writer = _tensorboard(folder) if tracker == "tensorboard" else None
        past = _kept(folder / "steps.csv", told)
        log = Log(folder / "steps.csv", past)
        losses = Losses(past)
        epochs = Log(folder / "epochs.csv", history)
        bar: Any = None
        try:
            while True:
                step = next(steps)
                bar = bar or tqdm(
                    total=step.steps, initial=told, unit="step", disable=self.quiet, leave=False, file=sys.stderr
                )
                bar.set_postfix(
                    {
                        **{name: f"{value:.3f}" for name, value in step.terms.items()},
                        "tok/s": f"{step.tokens / step.seconds:.0f}",
                    },
                    refresh=False,
                )
                bar.update()
                log.write(row := _row(step))
                losses.add(row)
                if step.dev:
                    epochs.write({"epoch": step.epoch, "step": step.step, **step.dev})
                    self.say(f"epoch {step.epoch}: loss {losses.mean:.4f}, dev {100 * step.dev['dev']:.2f}")
                if writer:
                    for name, value in {**row, **step.dev}.items():
                        writer.add_scalar(name, value, step.step)
        except StopIteration as end:
            return float(end.value)
        finally:
            log.close()
            epochs.close()
            if bar:
                bar.close()
            if writer:
                writer.close()


def dev_scores(folder: Path) -> list[float]:
    """What dev showed after each epoch of a stage."""
    with (folder / "epochs.csv").open(newline="") as file:
        return [float(row["dev"]) for row in csv.DictReader(file)]


def _row(step: Step) -> dict[str, float]:
    return {
        "step": step.step,
        "epoch": step.epoch,
        "loss": step.loss,
        **step.terms,
        "gradient_norm": step.gradient_norm,
        "rate": step.rate,
        "examples": step.examples,
        "tokens": step.tokens,
        "seconds": round(step.seconds, 4),
    }


class Losses:
    """The mean loss of the epoch that is under way, over its examples; begun before a stop, it goes on after it."""

    def __init__(self, past: list[Mapping[str, Any]]) -> None:
        self.epoch, self.total, self.examples = 0, 0.0, 0
        for row in past:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        if int(row["epoch"]) != self.epoch:
            self.epoch, self.total, self.examples = int(row["epoch"]), 0.0, 0
        self.total += float(row["loss"]) * int(row["examples"])
        self.examples += int(row["examples"])

    @property
    def mean(self) -> float:
        return self.total / max(self.examples, 1)


class Log:
    """A CSV file that begins with known rows and grows by a line at a time, each written through at once."""

    def __init__(self, path: Path, rows: list[Mapping[str, Any]]) -> None:
        known = io.StringIO(newline="")
        if rows:
            writer = csv.DictWriter(known, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        write_atomically(path, known.getvalue().encode())  # a kill while a log is cut back must not empty it
        self.path, self.file, self.empty = path, path.open("a", newline=""), not rows

    def write(self, row: Mapping[str, Any]) -> None:
        with disk_errors(self.path):
            writer = csv.DictWriter(self.file, list(row))
            if self.empty:
                writer.writeheader()
            writer.writerow(row)
            self.file.flush()
        self.empty = False

    def close(self) -> None:
        with disk_errors(self.path):
            self.file.close()


def _kept(path: Path, step: int) -> list[Mapping[str, Any]]:
    """Rows of an earlier log up to a step: what came after the checkpoint happens again."""
    if not step or not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if (row["step"] or "").isdigit() and int(row["step"]) <= step]


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard is not installed; write pip install 'potstill[track]', or --tracker none"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
