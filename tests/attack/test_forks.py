"""Attacks that fork run in a process of their own: in one that has threads, as test workers have, a fork may wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(bool(os.environ.get("POTSTILL_ATTACK")), reason="make attack runs them itself")
def test_29_and_30_what_forks_holds_too() -> None:
    chosen = ["test_29_misreading.py", "test_30_damaged_files.py", "-k", "test_29_fuzzed or test_30_damaged_rows"]
    command = [sys.executable, "-m", "pytest", "-m", "", "-p", "no:xdist", *chosen]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert " passed" in ended.stdout
