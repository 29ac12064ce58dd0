"""What a person sees while a run goes on, and the logs it leaves: steps.csv, epochs.csv, TensorBoard where asked for."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from potstill.errors import InputError
from potstill.runs.planning.timing import estimate
from potstill.system.files import disk_errors, write_atomically
from potstill.system.terminal import is_terminal, say, visible
from potstill.system.units import duration
from potstill.training.checkpoints import Checkpoint
from potstill.training.loop import Step, Training

# where there is no terminal, a line of progress is written after so many seconds and so large a part of the work …
SOONEST, PART = 10.0, 0.05
LATEST = 300.0  # … or after so many seconds


class Bar:
    """Progress on standard error that only knows how to go on: a bar on a terminal, else a line now and then."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0, quiet: bool = False) -> None:
        self.label, self.total, self.unit, self.quiet = visible(label), total, unit, quiet
        self.done = self.first = self.last = done
        self.began = self.told = time.monotonic()
        self.note: Mapping[str, str] = {}
        self.bar: Any = None
        if is_terminal() and not quiet:  # shown with its first numbers: where all is known already, nothing flickers
            self.bar = tqdm(
                total=total, desc=self.label, unit=unit, initial=done, leave=False, delay=0.5, file=sys.stderr
            )

    def advance(self, count: int, note: Mapping[str, str] | None = None) -> None:
        self.done += count
        self.note = note or {}
        if self.bar is not None:
            self.bar.set_postfix(self.note, refresh=False)
            self.bar.update(count)
        elif not self.quiet and self.is_due(time.monotonic()):
            self.told, self.last = time.monotonic(), self.done
            say(self.line())

    def is_due(self, now: float) -> bool:
        enough = self.done - self.last >= PART * self.total
        return now - self.told >= (SOONEST if enough else LATEST)

    def line(self) -> str:
        """label: 1200 of 5000 rows, 24 %, about 40 s left; soft 0.312"""
        passed = max(self.told - self.began, 1e-9)
        left = duration(max(self.total - self.done, 0) * passed / max(self.done - self.first, 1))
        share = f", {100 * self.done // self.total} %" if self.total else ""
        told = f"{self.done} of {self.total} {self.unit}s{share}, about {left} left"
        note = "; " + ", ".join(f"{name} {value}" for name, value in self.note.items()) if self.note else ""
        return f"{f'{self.label}: ' if self.label else ''}{told}{note}"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Display:
    """Words and progress on standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            with tqdm.external_write_mode(file=sys.stderr):  # bars make room
                say(text)

    @contextmanager
    def bar(self, label: str, total: int, unit: str = "row") -> Iterator[Bar]:
        bar = Bar(label, total, unit, quiet=self.quiet)
        try:
            yield bar
        finally:
            bar.close()

    def expect(self, training: Training, done: int) -> None:
        """Say how long it will take, before it begins."""
        if not self.quiet:
            steps, seconds = estimate(training)
            left = max(steps - done, 0)
            self.say(f"{left} steps, about {duration(seconds * left / steps)} and the time to score dev")

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
        bar: Bar | None = None
        try:
            while True:
                step = next(steps)
                bar = bar or Bar("", step.steps, "step", told, self.quiet)
                terms = {name: f"{value:.3f}" for name, value in step.terms.items()}
                bar.advance(1, {**terms, "tok/s": f"{step.tokens / step.seconds:.0f}"})
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
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        whole = [row for row in csv.DictReader(file, restkey="more") if _is_whole(row)]
    return [row for row in whole if int(row["step"]) <= step]


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a line of a log holds numbers: one that was cut off or damaged is left out."""
    try:
        return all(math.isfinite(float(cell)) for cell in row.values()) and all(
            int(row[name]) >= 0 for name in ("step", "epoch", "examples")
        )
    except (KeyError, TypeError, ValueError):
        return False


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard is not installed; write pip install 'potstill[track]', or --tracker none"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
