"""Where every file lives."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Tokenised rows, the teacher's memory, texts and exports, and baselines: all can be made again. POTSTILL_CACHE moves it."""
    given = os.environ.get("POTSTILL_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "potstill"


def examples() -> Path:
    return cache() / "examples"


def memory(given: str | None) -> Path:
    return Path(given) if given else cache() / "memory"


def outputs() -> Path:
    """Texts that teachers wrote."""
    return cache() / "outputs"


def baselines() -> Path:
    return cache() / "baselines"


def exports() -> Path:
    """Teachers as ONNX files, for their lines in the table."""
    return cache() / "exports"


def offloaded() -> Path:
    """Weights of teachers that do not fit into memory."""
    return cache() / "offloaded"


class RunFolder:
    """A run's files: plain ones only, so that everything shown later is a function of this folder."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder)
        self.mark = self.root / "run.json"  # written first: where it is, the folder is a run's
        self.recipe = self.root / "recipe.toml"
        self.student = self.root / "student"
        self.baseline = self.root / "baseline"
        self.measurements = self.root / "measurements.json"
        self.answers = self.root / "answers.safetensors"
        self.report = self.root / "report.html"
        self.grid = self.root / "grid"

    def stage(self, number: int) -> Path:
        return self.root / "stages" / str(number)

    def seed(self, number: int) -> Path:
        """The run of one seed of several."""
        return self.root / f"seed-{number}"

    def heads(self, name: str) -> Path:
        """The student's folder for a further data set of a multi-task run."""
        return self.root / f"student-{name}"
