from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from potstill.system.files import folder_lock
from potstill.training import checkpoints
from tests.reliability.processes import run_to_the_end, same_student, started, steps_told, wait_until
from tests.support.commands import patient
from tests.support.small_models import sentences, write_csv

SHORT = ["--length", "32", "--quiet", "--set", "timing=none"]
SIGNALS = {signal.SIGTERM: 143, signal.SIGINT: 130}


def ended(running: subprocess.Popen[str]) -> tuple[int, float]:
    """Exit code, and seconds until it came."""
    begun = time.monotonic()
    _, told = running.communicate(timeout=60)
    assert "Traceback" not in told, told
    return running.returncode, time.monotonic() - begun


@pytest.mark.slow
def test_05_a_signal_leaves_a_checkpoint_of_the_current_step(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    words = [*patient(home), "--epochs", "12", "--set", "save_every=100000", "--set", "batch=8", *SHORT]
    run_to_the_end(*words, "--out", tmp_path / "whole")
    longest = 0.0
    for number, (sent, code) in enumerate(SIGNALS.items()):
        with started(*words, "--out", tmp_path / "run") as running:
            # not where an epoch ends, after 30 steps, which saves anyway
            wait_until(lambda: steps_told(tmp_path / "run") >= 35 + 30 * number, running)  # noqa: B023 (called at once)
            running.send_signal(sent)
            found, seconds = ended(running)
        newest = checkpoints.newest(tmp_path / "run/stages/0/checkpoints")
        assert found == code and newest is not None and newest.step == steps_told(tmp_path / "run")
        longest = max(longest, seconds)
    assert longest < 10
    run_to_the_end(*words, "--out", tmp_path / "run")
    assert same_student(tmp_path / "run", tmp_path / "whole")
    figure(5, f"143 and 130 after at most {longest:.1f} s, the current step saved")


@pytest.mark.slow
def test_05_a_second_interrupt_leaves_at_once(home: Path, tmp_path: Path, figure: Callable[..., None]) -> None:
    """One step is made to last: all rows at once."""
    write_csv(tmp_path / "many.csv", sentences(40_000, 4))
    words = [*patient(home), "--train", tmp_path / "many.csv", "--set", "batch=40000", "--method", "soft_targets"]
    with started(*words, *SHORT, "--out", tmp_path / "run") as running:
        wait_until((tmp_path / "run/stages/0/steps.csv").exists, running)
        running.send_signal(signal.SIGINT)
        time.sleep(1)
        assert running.poll() is None, "the first one waits for the step's end"
        running.send_signal(signal.SIGINT)
        code, seconds = ended(running)
    assert code == 130 and seconds < 3 and steps_told(tmp_path / "run") <= 0
    figure(5, f"a second Ctrl-C ends it after {seconds:.1f} s in the middle of a step")


@pytest.mark.slow
@pytest.mark.parametrize("sent", SIGNALS)
def test_05_a_run_that_waits_for_another_one_ends_when_it_is_asked(
    sent: signal.Signals, home: Path, tmp_path: Path
) -> None:
    """Both ask the same teacher: one waits for the other's lock."""
    words = [*patient(home), "--set", f"memory={tmp_path / 'memory'}", "--epochs", "1", "--force", *SHORT]
    run_to_the_end(*words, "--out", tmp_path / "first")
    (memory,) = (tmp_path / "memory").iterdir()
    write_csv(tmp_path / "other.csv", sentences(50, 4))
    with folder_lock(memory), started(*words, "--train", tmp_path / "other.csv", "--out", tmp_path / "run") as running:
        wait_until((tmp_path / "run/recipe.toml").exists, running)
        time.sleep(1)
        running.send_signal(sent)
        code, seconds = ended(running)
    assert code == SIGNALS[sent] and seconds < 10
