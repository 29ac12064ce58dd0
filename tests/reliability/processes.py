"""Runs of the command in processes of their own, to be killed, asked to stop and looked at."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.commands import command

PATIENCE = 120  # seconds that a test waits for what must come


def started(*words: str | Path) -> subprocess.Popen[str]:
    return command(*words)


def run_to_the_end(*words: str | Path) -> str:
    """What the run told on standard error."""
    with started(*words) as running:
        _, told = running.communicate()
    assert running.returncode == 0, told
    return told


def wait_until(true: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert running.poll() is None, f"it ended before: {running.communicate()[1]}"
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def steps_told(run: Path) -> int:
    """Whole lines of the log."""
    log = run / "stages/0/steps.csv"
    return log.read_text().count("\n") - 1 if log.exists() else -1


def same_student(ours: Path, theirs: Path) -> bool:
    """Bit for bit."""
    first, second = (load_file(run / "student/model.safetensors") for run in (ours, theirs))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
