from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from potstill.runs.folder import holds_work
from potstill.system.paths import RunFolder
from potstill.training import checkpoints
from tests.reliability.processes import same_student
from tests.support.commands import FAST, patient, potstill
from tests.support.faults import nearly_full, read_only, small_disk


def test_07_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    words = [*patient(home), "--epochs", "2", "--set", "save_every=7", *FAST]
    assert potstill(*words, "--out", tmp_path / "whole") == 0
    reached = []
    with small_disk(tmp_path / "disk") as disk:
        run = disk / "run"
        for left in range(0, 2_000_000, 80_000):  # bytes: it ends in another place each time
            with nearly_full(disk, left):
                if potstill(*words, "--out", run) == 0:
                    break
                told = capsys.readouterr().err
                assert "No space left on device" in told and str(disk) in told
                assert ("stays usable" in told) == holds_work(RunFolder(run))
                newest = checkpoints.newest(run / "stages/0/checkpoints")
                reached.append(newest.step if newest else 0)
        assert reached == sorted(reached) and len(set(reached)) > 2, reached
        assert potstill(*words, "--out", run) == 0
        assert same_student(run, tmp_path / "whole")
    figure(7, f"{len(reached)} of {len(reached)} full disks told, went on to the same weights")


def test_07_a_full_disk_under_the_cache_is_told(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[..., None],
) -> None:
    """Rows, tokens and the teacher's memory lie there."""
    words = [*patient(home), "--epochs", "1", *FAST]
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("POTSTILL_CACHE", str(disk / "cache"))
        for left in (0, 30_000, 60_000, 120_000):
            with nearly_full(disk, left):
                assert potstill(*words, "--out", tmp_path / "run") == 1, f"{left} bytes should not be enough"
                told = capsys.readouterr().err
                assert "No space left on device" in told and str(disk) in told and "Traceback" not in told
        assert potstill(*words, "--out", tmp_path / "run") == 0


def test_07_a_read_only_folder_is_told(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    words = [*patient(home), "--epochs", "1", *FAST]
    with small_disk(tmp_path / "disk") as disk:
        with read_only(disk):
            assert potstill(*words, "--out", disk / "run") == 2  # before any work
            told = capsys.readouterr().err
            assert "read-only file system" in told and str(disk) in told
        assert potstill(*words, "--out", disk / "run") == 0
    figure(7, "a read-only folder told")
