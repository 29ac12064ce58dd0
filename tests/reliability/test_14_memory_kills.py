from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.processes import run_to_the_end, started, wait_until
from tests.support.commands import patient
from tests.support.small_models import sentences, write_csv
from tests.training.teacher.test_memory import content, count_shards

KILLS = 10


@pytest.mark.slow
def test_14_ten_kills_while_remembering_lead_to_the_same_bytes(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    write_csv(tmp_path / "many.csv", sentences(50_000, 14))
    words = [*patient(home), "--train", tmp_path / "many.csv", "--epochs", "0.001", "--force", "--length", "32"]
    words += ["--quiet", "--set", "timing=none"]

    def memory(name: str) -> Path:
        return next((tmp_path / name).glob("*"), tmp_path / name / "none")

    run_to_the_end(*words, "--set", f"memory={tmp_path / 'whole'}", "--out", tmp_path / "whole run")
    chance, progress = random.Random(14), [0]
    for _ in range(KILLS):
        run = [*words, "--set", f"memory={tmp_path / 'killed'}", "--out", tmp_path / "run"]
        with started(*run) as running:
            wait_until(lambda: count_shards(memory("killed")) > progress[-1], running)
            time.sleep(chance.random() * 0.3)
            running.send_signal(signal.SIGKILL)
            running.communicate()
        assert running.returncode == -signal.SIGKILL
        progress.append(count_shards(memory("killed")))
    shards = count_shards(memory("whole"))
    assert KILLS <= progress[-1] < shards, "the kills came while it was asking"
    run_to_the_end(*run)
    assert content(memory("killed")) == content(memory("whole"))
    figure(14, f"{KILLS} of {KILLS}, {shards} shards byte-equal")
