"""Ten times the rows take ten times the time and no more private memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from potstill.models import student as students
from tests.support.small_models import sentences, small_model, write_csv

MEASURED = """
import json, sys, threading, time
from potstill.recipe.resolve import resolve
from potstill.runs.distill import distill
import potstill.runs.stages, sklearn.metrics, torch

def private():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

folder, rows, out = sys.argv[1:]
flags = {"teacher": f"{folder}/teacher", "data.train": f"{folder}/{rows}.csv", "data.dev": f"{folder}/dev.csv", "force": True, "baseline": False,
    "student": "keep_layers:2", "method": "patient", "epochs": 1.0, "length": 32, "dropout": 0.0, "save_every": 100000, "timing": "none"}
recipe = resolve(None, {path: ("test", value) for path, value in flags.items()}).recipe
peak, done = [0.0], threading.Event()
def watch():
    while not done.wait(0.02):
        peak[0] = max(peak[0], private())
threading.Thread(target=watch, daemon=True).start()
begun = time.perf_counter()
distill(recipe, out)
done.set()
print(json.dumps({"seconds": time.perf_counter() - begun, "private": peak[0]}))
"""


@pytest.mark.slow
def test_ten_times_the_rows(tmp_path: Path) -> None:
    sizes = (2_000, 20_000)
    students.save_student(small_model("bert"), tmp_path / "teacher")
    write_csv(tmp_path / "dev.csv", sentences(50, 2))
    for rows in sizes:
        write_csv(tmp_path / f"{rows}.csv", sentences(rows, 1))
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    found = {}
    for rows in sizes:
        words = [sys.executable, "-c", MEASURED, str(tmp_path), str(rows), str(tmp_path / f"out{rows}")]
        ran = subprocess.run(words, capture_output=True, text=True, env=alone)
        assert ran.returncode == 0, ran.stderr
        found[rows] = json.loads(ran.stdout.splitlines()[-1])
    few, many = (found[rows] for rows in sizes)
    assert many["seconds"] < 12 * few["seconds"], found
    assert many["private"] - few["private"] < 16, (
        found
    )  # MiB, of which 1.4 are the positions and lengths of 18,000 more rows
