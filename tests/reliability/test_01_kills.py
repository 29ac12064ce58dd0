from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from potstill.training import checkpoints
from tests.reliability.processes import run_to_the_end, same_student, started, steps_told, wait_until
from tests.support.commands import patient

KILLS = 20


@pytest.mark.slow
def test_01_twenty_kills_while_saving_every_step_resume_twenty_times(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    words = [*patient(home), "--epochs", "14", "--set", "save_every=1", "--set", "batch=8"]
    words += ["--length", "32", "--set", "timing=none"]
    run_to_the_end(*words, "--out", tmp_path / "whole")
    run, chance, resumed, saved = tmp_path / "run", random.Random(1), 0, -1
    for _ in range(KILLS):
        with started(*words, "--out", run) as running:
            enough = max(steps_told(run), 0) + chance.randint(1, 15)
            wait_until(lambda: steps_told(run) >= enough, running)  # noqa: B023 (called at once)
            time.sleep(chance.random() * 0.05)
            running.send_signal(signal.SIGKILL)
            _, told = running.communicate()
        assert running.returncode == -signal.SIGKILL
        resumed += f"continuing at step {saved} from" in told
        newest = checkpoints.newest(run / "stages/0/checkpoints")
        assert newest is not None and newest.step >= steps_told(run) - 1, "at most the step at hand is lost"
        saved = newest.step
    told = run_to_the_end(*words, "--out", run)
    resumed += f"continuing at step {saved} from" in told
    assert resumed == KILLS
    assert same_student(run, tmp_path / "whole")
    logs = [(folder / "stages/0/steps.csv").read_text().splitlines() for folder in (run, tmp_path / "whole")]
    assert [line.rpartition(",")[0] for line in logs[0]] == [line.rpartition(",")[0] for line in logs[1]]  # but seconds
    figure(1, f"{resumed} of {KILLS}, to the same weights as an undisturbed run")
