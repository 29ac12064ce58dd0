"""Ten times the rows, or unlabelled texts, take ten times the time and hardly more private memory."""

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


FROM_POOL = """
import json, sys, threading, time
import numpy as np
from potstill.data.examples import store
from potstill.data.making import MakeContext
from potstill.data.pools import Pool, with_unlabelled
from potstill.data.rows import open_table
from potstill.models.student import load_student
from potstill.recipe import plugins
from potstill.tasks.label_matching import make_task

def private():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024

folder, texts = sys.argv[1:]
train, dev = (open_table(f"{folder}/{name}.csv") for name in ("train", "dev"))
task, _ = make_task(None, None, ["0", "1"], None, "rows")
context = MakeContext(0, task, None, load_student(f"{folder}/teacher"), 32)
before, peak, done = private(), [0.0], threading.Event()
def watch():
    while not done.wait(0.02):
        peak[0] = max(peak[0], private())
threading.Thread(target=watch, daemon=True).start()
begun = time.perf_counter()
pool = Pool([f"{folder}/{texts}.txt"], train)
examples = with_unlabelled(store(train, task), pool, task, {"dev": store(dev, task)}, lambda line: None)
made = plugins.make("data", "neighbours", {"k": 4}).make(examples, context)
done.set()
found = {"seconds": time.perf_counter() - begun, "private": peak[0] - before, "texts": len(examples), "chosen": len(made)}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_pool_of_300_000_sentences_is_chosen_from_in_minutes_and_flat_memory(tmp_path: Path) -> None:
    """Documents of 20 sentences, cut, compared with dev, tokenised, and the nearest to 2,000 rows chosen."""
    students.save_student(small_model("bert"), tmp_path / "teacher")
    write_csv(tmp_path / "train.csv", sentences(2_000, 1))
    write_csv(tmp_path / "dev.csv", sentences(500, 2))
    few, many = 1_500, 15_000
    texts = [f"{text.rstrip('.,!; ').capitalize()}." for text, _ in sentences(20 * many, 3)]
    for documents in (few, many):
        lines = (" ".join(texts[20 * place : 20 * place + 20]) for place in range(documents))
        (tmp_path / f"{documents}.txt").write_text("\n".join(lines))
    found = {}
    for documents in (few, many):
        words = [sys.executable, "-c", FROM_POOL, str(tmp_path), str(documents)]
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "POTSTILL_CACHE": str(tmp_path / f"cache{documents}")}
        ran = subprocess.run(words, capture_output=True, text=True, env=alone)
        assert ran.returncode == 0, ran.stderr
        found[documents] = json.loads(ran.stdout.splitlines()[-1])
    print(found)
    assert found[many]["texts"] > 200_000 and 4_000 < found[many]["chosen"] <= 10_000, found
    assert found[many]["seconds"] < 180, found
    # 32 MiB are 120 bytes for each text more: positions, keys and lengths
    assert found[many]["private"] - found[few]["private"] < 32, found
