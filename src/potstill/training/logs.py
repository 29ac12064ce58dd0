"""The logs of a stage: steps.csv, epochs.csv and, if asked for, TensorBoard."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.system.display import Bar, Display
from potstill.system.files import disk_errors, write_atomically
from potstill.training.checkpoints import Checkpoint
from potstill.training.loop import Step


class Follower:
    """Shows and logs each step of a stage. Use it as a context."""

    def __init__(self, folder: Path, resume: Checkpoint | None, tracker: str, show: Display) -> None:
        self.folder, self.resume, self.tracker, self.display = folder, resume, tracker, show
        self.bar: Bar | None = None

    def __enter__(self) -> Follower:
        self.stack = ExitStack()
        self.logs = self.stack.enter_context(StageLogs(self.folder, self.resume, self.tracker))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def note(self, step: Step) -> None:
        if self.bar is None:
            self.bar = self.stack.enter_context(
                self.display.bar("", step.steps, "step", self.resume.step if self.resume else 0)
            )
        terms = {name: f"{value:.3f}" for name, value in step.terms.items()}
        self.bar.advance(1, {**terms, "tok/s": f"{step.tokens / step.seconds:.0f}"})
        self.logs.write(step)
        if step.dev:
            self.display.say(f"epoch {step.epoch}: loss {self.logs.loss.mean:.4f}, dev {100 * step.dev['dev']:.2f}")


class StageLogs:
    """The log files of one stage. A resumed stage keeps the rows up to its checkpoint and appends to them."""

    def __init__(self, folder: Path, resume: Checkpoint | None, tracker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.tensorboard = _tensorboard(folder) if tracker == "tensorboard" else None
        past = _rows_until(folder / "steps.csv", resume.step if resume else 0)
        self.steps = CsvLog(folder / "steps.csv", past)
        self.epochs = CsvLog(folder / "epochs.csv", resume.state["progress"]["history"] if resume else [])
        self.loss = EpochLoss(past)

    def write(self, step: Step) -> None:
        row = _row(step)
        self.steps.write(row)
        self.loss.add(row)
        if step.dev:
            self.epochs.write({"epoch": step.epoch, "step": step.step, **step.dev})
        if self.tensorboard:
            for name, value in {**row, **step.dev}.items():
                self.tensorboard.add_scalar(name, value, step.step)

    def __enter__(self) -> StageLogs:
        return self

    def __exit__(self, *_: object) -> None:
        for log in (self.steps, self.epochs, self.tensorboard):
            if log:
                log.close()


def dev_scores(folder: Path) -> list[float]:
    """The dev score after each epoch of a stage."""
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


class EpochLoss:
    """The mean loss of the current epoch over its examples. It starts from logged rows, so a resumed epoch is counted whole."""

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


class CsvLog:
    """A CSV file that starts with the given rows and grows line by line, each flushed at once."""

    def __init__(self, path: Path, rows: list[Mapping[str, Any]]) -> None:
        past = io.StringIO(newline="")
        if rows:
            writer = csv.DictWriter(past, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        write_atomically(path, past.getvalue().encode())  # a kill while the log is cut back must not empty it
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


def _rows_until(path: Path, step: int) -> list[Mapping[str, Any]]:
    """The rows of an earlier log up to a step; later steps are trained and logged again."""
    if not step or not path.exists():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        intact = [row for row in csv.DictReader(file, restkey="more") if _is_intact(row)]
    return [row for row in intact if int(row["step"]) <= step]


def _is_intact(row: Mapping[str, Any]) -> bool:
    """Whether all cells are numbers. A kill can cut off the last line of a log."""
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
            "TensorBoard is not installed; run pip install 'potstill[track]', or write --tracker none"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
