"""30: whatever is typed, the answer is a result, or what to do: never a traceback, with bounded memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.attacks import Server, some, summed
from tests.attack.command_lines import lines, odd_places
from tests.attack.small_home import Home

SECONDS = 90.0  # on a machine that does other things as well


def test_30_no_command_line_ends_in_a_traceback(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    odd_places(tmp_path / "place")
    every = list(lines(home, tmp_path / "place"))
    assert len(every) >= 500
    cases, wrong, peak = some(every, 24), [], 0
    for line in cases:
        ended = server.run(*line.words, stdin=line.stdin, encoding=line.encoding, cwd=tmp_path, seconds=SECONDS)
        peak = max(peak, ended.peak)
        if fault := ended.fault(line.codes):
            wrong.append(
                f"potstill {' '.join(map(repr, shortened(line.words, home, tmp_path)))} [{line.encoding}]: {fault}"
            )
    if path := os.environ.get("POTSTILL_FAULTS"):
        Path(path).write_text("\n".join(wrong) + "\n", encoding="utf-8", errors="backslashreplace")
    assert not wrong, summed(wrong, len(cases))
    figure(30, f"{len(cases):,} command lines: 0 tracebacks, {{:.1f}} GB or less", peak / 1e9)


def shortened(words: tuple[str, ...], home: Home, place: Path) -> list[str]:
    """To be read: without what every distillation has."""
    usual = {str(word) for word in home.distill()} - {
        "distill",
        "--teacher",
        "--train",
        "--test",
        "--epochs",
        "--length",
        "--student",
        "--method",
    }
    kept = [word for word in words if word not in usual] if words[:1] == ("distill",) else list(words)
    return [word.replace(str(place), "PLACE").replace(str(home.folder), "HOME")[:120] for word in kept]


@pytest.mark.slow
def test_30_real_processes_end_as_their_forks_do(home: Home, server: Server, tmp_path: Path) -> None:
    """With the standard streams of a shell."""
    odd = [
        (["predict", str(home.folder / "nosuch")], "utf-8"),
        (["measure", str(home.folder / "nosuch"), "--data", str(home.folder / "test.csv")], "utf-8"),
        (["measure", str(home.teacher), "--data", str(home.folder / "test.csv")], "ascii"),
        (["list", "methods"], "ascii"),
        (["augment", str(home.folder / "train.csv"), "--out", str(tmp_path / "a.csv"), "--seed", "-1"], "utf-8"),
        (["report", str(home.folder)], "latin-1"),
    ]
    for words, encoding in odd:
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "POTSTILL_CACHE": str(tmp_path / "cache")}
        told = subprocess.run(
            [sys.executable, "-m", "potstill", *words],
            capture_output=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert b"Traceback" not in told.stderr, told.stderr[-500:]
        assert told.returncode in (0, 2), told.stderr[-500:]
        assert told.returncode == server.run(*words, encoding=encoding).code
